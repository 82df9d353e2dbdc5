import subprocess
import sys


def test_torchvision_imports_beside_any_torch():
    """In a process of its own: whatever this one has imported already would hide the fault."""
    script = (
        "from fedsim.base.torchvision_setup import prepare_torchvision;"
        "prepare_torchvision(); prepare_torchvision();"
        "from torchvision.models import resnet18;"
        "print(sum(p.numel() for p in resnet18(num_classes=10).parameters()))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "11181642", done.stderr
