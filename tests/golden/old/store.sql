BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0004');
CREATE TABLE events (
	job_id VARCHAR(32) NOT NULL, 
	id INTEGER NOT NULL, 
	type VARCHAR(16) NOT NULL, 
	round INTEGER, 
	data JSON NOT NULL, 
	at DATETIME NOT NULL, 
	PRIMARY KEY (job_id, id), 
	FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "events" VALUES('6am5w9zt8jfn',1,'state',NULL,'{"state": "QUEUED", "previous": null, "reason": null, "message": null, "terminal": false}','2026-11-23 04:58:27.709733');
INSERT INTO "events" VALUES('6am5w9zt8jfn',2,'state',NULL,'{"state": "STARTING", "previous": "QUEUED", "reason": null, "message": null, "terminal": false}','2026-11-23 04:58:27.718549');
INSERT INTO "events" VALUES('6am5w9zt8jfn',3,'state',NULL,'{"state": "RUNNING", "previous": "STARTING", "reason": null, "message": null, "terminal": false}','2026-11-23 04:58:38.828782');
INSERT INTO "events" VALUES('6am5w9zt8jfn',4,'round',1,'{}','2026-11-23 04:58:38.833536');
INSERT INTO "events" VALUES('6am5w9zt8jfn',5,'round',2,'{}','2026-11-23 04:58:38.877185');
INSERT INTO "events" VALUES('6am5w9zt8jfn',6,'round',3,'{}','2026-11-23 04:58:38.914088');
INSERT INTO "events" VALUES('6am5w9zt8jfn',7,'state',NULL,'{"state": "SUCCEEDED", "previous": "RUNNING", "reason": null, "message": null, "terminal": true}','2026-11-23 04:58:39.388441');
INSERT INTO "events" VALUES('6am5wp0f67d9',1,'state',NULL,'{"state": "QUEUED", "previous": null, "reason": null, "message": null, "terminal": false}','2026-11-23 04:58:40.018219');
INSERT INTO "events" VALUES('6am5wp0f67d9',2,'state',NULL,'{"state": "STARTING", "previous": "QUEUED", "reason": null, "message": null, "terminal": false}','2026-11-23 04:58:40.030480');
INSERT INTO "events" VALUES('6am5wp0f67d9',3,'state',NULL,'{"state": "RUNNING", "previous": "STARTING", "reason": null, "message": null, "terminal": false}','2026-11-23 04:58:50.854443');
INSERT INTO "events" VALUES('6am5wp0f67d9',4,'round',1,'{}','2026-11-23 04:58:50.859441');
INSERT INTO "events" VALUES('6am5wp0f67d9',5,'round',2,'{}','2026-11-23 04:58:50.892719');
INSERT INTO "events" VALUES('6am5wp0f67d9',6,'round',3,'{}','2026-11-23 04:58:50.924151');
INSERT INTO "events" VALUES('6am5wp0f67d9',7,'round',4,'{}','2026-11-23 04:58:50.947217');
INSERT INTO "events" VALUES('6am5wp0f67d9',8,'state',NULL,'{"state": "SUCCEEDED", "previous": "RUNNING", "reason": null, "message": null, "terminal": true}','2026-11-23 04:58:51.424305');
CREATE TABLE jobs (
	id VARCHAR(32) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason VARCHAR(32), 
	message TEXT, 
	priority INTEGER NOT NULL, 
	labels JSON NOT NULL, 
	spec JSON NOT NULL, 
	rounds_total INTEGER NOT NULL, 
	rounds_done INTEGER NOT NULL, 
	last_metrics JSON NOT NULL, 
	waiting TEXT, 
	restarts INTEGER NOT NULL, 
	submission_id VARCHAR(100), 
	idempotency_key VARCHAR(200), 
	body_hash VARCHAR(64) NOT NULL, 
	events INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	submitted_at DATETIME, 
	started_at DATETIME, 
	finished_at DATETIME, 
	heartbeat_at DATETIME, resumes INTEGER DEFAULT '0' NOT NULL, algorithm VARCHAR(100) DEFAULT '' NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (idempotency_key)
);
INSERT INTO "jobs" VALUES('6am5w9zt8jfn','demo','SUCCEEDED',NULL,NULL,0,'{}','{"name": "demo", "seed": 7, "rounds": 3, "clients": {"total": 50, "fraction": 0.2}, "data": {"dataset": {"name": "digits"}, "partition": {"kind": "dirichlet", "beta": 0.5, "min_size": 5}, "tests": {"kind": "global", "share": 0.25}, "public": {"fraction": 0.0}, "limit": null, "download": false}, "model": {"name": "mlp"}, "local": {"epochs": 5, "steps": null, "batch_size": 10, "lr": 0.05, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": null, "round_decay": 1.0, "precision": "float32"}, "algorithm": {"name": "fedavg"}, "curriculum": {"data": null, "clients": null}, "evaluation": {"every": 1, "validation": 0.0, "personal": "auto"}, "resources": {"workers": "auto", "cpus_per_worker": 1.0, "gpus_per_worker": 0.0, "server_gpus": 0.0, "stack": "auto", "graphs": false}, "faults": {"client_error": "fail", "max_retries": 3, "max_restarts": 3}, "checkpoint": {"every": 10}}',3,3,'{"global_accuracy": 0.5793871866295265, "global_loss": 1.5591251114687583, "train_loss": 0.9347192762234738}',NULL,0,'fedsim-6am5w9zt8jfn-0','76b310087b6d47219ed7b9f20ca60e3b','2db6c6bc01ebba84bae9d5582146de804157cc10afddc775a7328c61238ccdc2',7,'2026-11-23 04:58:27.706874','2026-11-23 04:58:27.716518','2026-11-23 04:58:38.827877','2026-11-23 04:58:39.387648','2026-11-23 04:58:39.126242',0,'fedavg');
INSERT INTO "jobs" VALUES('6am5wp0f67d9','before-the-move','SUCCEEDED',NULL,NULL,0,'{"group": "old"}','{"name": "before-the-move", "seed": 11, "rounds": 4, "clients": {"total": 6, "fraction": 0.5}, "data": {"dataset": {"name": "digits"}, "partition": {"kind": "dirichlet", "beta": 0.5, "min_size": 4}, "tests": {"kind": "global", "share": 0.25}, "public": {"fraction": 0.0}, "limit": 200, "download": false}, "model": {"name": "mlp", "hidden": 4}, "local": {"epochs": 1, "steps": null, "batch_size": 8, "lr": 0.05, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": null, "round_decay": 1.0, "precision": "float32"}, "algorithm": {"name": "kdia", "generator_epochs": 1, "generator_batches": 2, "generator_batch_size": 8, "generator_noise": 4}, "curriculum": {"data": null, "clients": null}, "evaluation": {"every": 1, "validation": 0.1, "personal": "auto"}, "resources": {"workers": "auto", "cpus_per_worker": 1.0, "gpus_per_worker": 0.0, "server_gpus": 0.0, "stack": "auto", "graphs": false}, "faults": {"client_error": "fail", "max_retries": 3, "max_restarts": 3}, "checkpoint": {"every": 2}}',4,4,'{"global_accuracy": 0.233983286908078, "global_loss": 2.044941764443248, "teacher_accuracy": 0.22562674094707522, "teacher_loss": 2.0580329511804174, "global_validation_accuracy": 0.2, "global_validation_loss": 2.123412256167231, "teacher_validation_accuracy": 0.1, "teacher_validation_loss": 2.1298600003223305, "train_loss": 4.231280120802515}',NULL,0,'fedsim-6am5wp0f67d9-0','d7a2e54fd278491d817edcecb2d48ec4','385532511cfeb70260325d3cb28de36a7f31bdd01014df1e27f45dd8768d66a8',8,'2026-11-23 04:58:40.015839','2026-11-23 04:58:40.030028','2026-11-23 04:58:50.853530','2026-11-23 04:58:51.423505','2026-11-23 04:58:51.345579',0,'kdia');
CREATE TABLE labels (
	job_id VARCHAR(32) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	value VARCHAR(200) NOT NULL, 
	PRIMARY KEY (job_id, "key"), 
	FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "labels" VALUES('6am5wp0f67d9','group','old');
CREATE TABLE rounds (
	job_id VARCHAR(32) NOT NULL, 
	round INTEGER NOT NULL, 
	digest VARCHAR(128) NOT NULL, 
	record JSON NOT NULL, 
	PRIMARY KEY (job_id, round), 
	FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "rounds" VALUES('6am5w9zt8jfn',1,'5d7e1aaf4f1864db76589c9ec7b38ad7a7662f4411d8a5aabfbb002d23bbf245','{"round": 1, "digest": "5d7e1aaf4f1864db76589c9ec7b38ad7a7662f4411d8a5aabfbb002d23bbf245", "memory_digest": null, "cohort": 10, "failed": [], "seconds": {"total": 0.184743, "survey": 0.0, "train": 0.167409, "server": 0.016982, "learn": 0.000132, "evaluate": 0.000193, "personal": 2.6e-05}, "bytes": {"down": 192400, "up": 192400, "by_payload": {"params": 384800}, "personal": 0}, "cost": {"updates": 793650, "flops": 28515840, "tuning_updates": 0, "tuning_flops": 0}, "metrics": {"global_accuracy": 0.39275766016713093, "global_loss": 2.1029721135394253, "train_loss": 1.5018913948789556}, "engine": {"pool": "ray", "width": 1, "actors": 2, "restarts": 0, "device": "cpu"}, "method": {}}');
INSERT INTO "rounds" VALUES('6am5w9zt8jfn',2,'9bd8822c82c2fbdc78356b91071b3705c6d355297efa34ad6062338b29ac1864','{"round": 2, "digest": "9bd8822c82c2fbdc78356b91071b3705c6d355297efa34ad6062338b29ac1864", "memory_digest": null, "cohort": 10, "failed": [], "seconds": {"total": 0.048376, "survey": 0.0, "train": 0.035804, "server": 0.010289, "learn": 2.8e-05, "evaluate": 0.002225, "personal": 3.1e-05}, "bytes": {"down": 192400, "up": 192400, "by_payload": {"params": 384800}, "personal": 0}, "cost": {"updates": 865800, "flops": 31448320, "tuning_updates": 0, "tuning_flops": 0}, "metrics": {"global_accuracy": 0.48746518105849584, "global_loss": 1.8441640045378824, "train_loss": 1.176569455689556}, "engine": {"pool": "ray", "width": 1, "actors": 2, "restarts": 0, "device": "cpu"}, "method": {}}');
INSERT INTO "rounds" VALUES('6am5w9zt8jfn',3,'ce114cdd039c78a36f2a472e7c96b153763ba01ffb67a7fd6f65f656048bb249','{"round": 3, "digest": "ce114cdd039c78a36f2a472e7c96b153763ba01ffb67a7fd6f65f656048bb249", "memory_digest": null, "cohort": 10, "failed": [], "seconds": {"total": 0.036614, "survey": 0.0, "train": 0.03095, "server": 0.00525, "learn": 2.4e-05, "evaluate": 0.00037, "personal": 2e-05}, "bytes": {"down": 192400, "up": 192400, "by_payload": {"params": 384800}, "personal": 0}, "cost": {"updates": 745550, "flops": 26493440, "tuning_updates": 0, "tuning_flops": 0}, "metrics": {"global_accuracy": 0.5793871866295265, "global_loss": 1.5591251114687583, "train_loss": 0.9347192762234738}, "engine": {"pool": "ray", "width": 1, "actors": 2, "restarts": 0, "device": "cpu"}, "method": {}}');
INSERT INTO "rounds" VALUES('6am5wp0f67d9',1,'4ead4afe1b7b758ef6f16a5142f692662648825695783118f95ba8480e9b11ae','{"round": 1, "digest": "4ead4afe1b7b758ef6f16a5142f692662648825695783118f95ba8480e9b11ae", "memory_digest": "92bc9da8f787fa8d33fa65925f7d7a0188f25a7b43fe18f54469b77dd4e92967", "cohort": 3, "failed": [], "seconds": {"total": 1.546736, "survey": 0.0, "train": 1.35774, "server": 0.17464, "learn": 0.013102, "evaluate": 0.001123, "personal": 0.000131}, "bytes": {"down": 78144, "up": 3720, "by_payload": {"params": 7440, "teacher": 3720, "generator": 70704}, "personal": 0}, "cost": {"updates": 3720, "flops": 1010880, "tuning_updates": 0, "tuning_flops": 0}, "metrics": {"global_accuracy": 0.10027855153203342, "global_loss": 2.307826123450202, "teacher_accuracy": 0.09192200557103064, "teacher_loss": 2.3087880116174118, "global_validation_accuracy": 0.05, "global_validation_loss": 2.305545092709403, "teacher_validation_accuracy": 0.05, "teacher_validation_loss": 2.3075565929746977, "train_loss": 4.625860277811686}, "engine": {"pool": "ray", "width": 1, "actors": 2, "restarts": 0, "device": "cpu"}, "method": {"generator_loss": 10.542561}}');
INSERT INTO "rounds" VALUES('6am5wp0f67d9',2,'6951607ea62f4a33d54a392b7d448bcd21210a4c31b29da707ae5d108b747805','{"round": 2, "digest": "6951607ea62f4a33d54a392b7d448bcd21210a4c31b29da707ae5d108b747805", "memory_digest": "027611e1ebaea2417259f2b863992aaeb1e0887d1bf6daedc3c72faa81bf3ea8", "cohort": 3, "failed": [], "seconds": {"total": 0.037386, "survey": 0.0, "train": 0.01958, "server": 0.006183, "learn": 0.003817, "evaluate": 0.00778, "personal": 2.6e-05}, "bytes": {"down": 78144, "up": 3720, "by_payload": {"params": 7440, "teacher": 3720, "generator": 70704}, "personal": 0}, "cost": {"updates": 3410, "flops": 909792, "tuning_updates": 0, "tuning_flops": 0}, "metrics": {"global_accuracy": 0.17270194986072424, "global_loss": 2.193122611215575, "teacher_accuracy": 0.12813370473537605, "teacher_loss": 2.232297051115749, "global_validation_accuracy": 0.1, "global_validation_loss": 2.2263282915080924, "teacher_validation_accuracy": 0.0, "teacher_validation_loss": 2.2541139690878493, "train_loss": 4.609793933821313}, "engine": {"pool": "ray", "width": 1, "actors": 2, "restarts": 0, "device": "cpu"}, "method": {"generator_loss": 14.761027}}');
INSERT INTO "rounds" VALUES('6am5wp0f67d9',3,'7a0734641e8c1f73554e77b22c8b9053686b9824d95bb6dd0adb907a0fc78acd','{"round": 3, "digest": "7a0734641e8c1f73554e77b22c8b9053686b9824d95bb6dd0adb907a0fc78acd", "memory_digest": "498256fea90f9bc215b2882111844d9339ecca24c4b47d1a0e52ff73b1dcd8ad", "cohort": 3, "failed": [], "seconds": {"total": 0.021022, "survey": 0.0, "train": 0.009966, "server": 0.005355, "learn": 0.003554, "evaluate": 0.002123, "personal": 2.3e-05}, "bytes": {"down": 78144, "up": 3720, "by_payload": {"params": 7440, "teacher": 3720, "generator": 70704}, "personal": 0}, "cost": {"updates": 4030, "flops": 1089504, "tuning_updates": 0, "tuning_flops": 0}, "metrics": {"global_accuracy": 0.20891364902506965, "global_loss": 2.1090021651062814, "teacher_accuracy": 0.17548746518105848, "teacher_loss": 2.1443099498421585, "global_validation_accuracy": 0.05, "global_validation_loss": 2.186063305223635, "teacher_validation_accuracy": 0.1, "teacher_validation_loss": 2.1933239877897592, "train_loss": 4.333324250486708}, "engine": {"pool": "ray", "width": 1, "actors": 2, "restarts": 0, "device": "cpu"}, "method": {"generator_loss": 10.148392}}');
INSERT INTO "rounds" VALUES('6am5wp0f67d9',4,'75baebb0bafed0b7a429902fe4fa599e0a5ffb5a983b1cff0e9a5f0cbc8953ad','{"round": 4, "digest": "75baebb0bafed0b7a429902fe4fa599e0a5ffb5a983b1cff0e9a5f0cbc8953ad", "memory_digest": "13456ede784b6471444534d2e833e0776ebb3927d43323d5975b77c7ab0e1521", "cohort": 3, "failed": [], "seconds": {"total": 0.022894, "survey": 0.0, "train": 0.015245, "server": 0.002215, "learn": 0.005233, "evaluate": 0.000183, "personal": 1.7e-05}, "bytes": {"down": 78144, "up": 3720, "by_payload": {"params": 7440, "teacher": 3720, "generator": 70704}, "personal": 0}, "cost": {"updates": 3410, "flops": 909792, "tuning_updates": 0, "tuning_flops": 0}, "metrics": {"global_accuracy": 0.233983286908078, "global_loss": 2.044941764443248, "teacher_accuracy": 0.22562674094707522, "teacher_loss": 2.0580329511804174, "global_validation_accuracy": 0.2, "global_validation_loss": 2.123412256167231, "teacher_validation_accuracy": 0.1, "teacher_validation_loss": 2.1298600003223305, "train_loss": 4.231280120802515}, "engine": {"pool": "ray", "width": 1, "actors": 2, "restarts": 0, "device": "cpu"}, "method": {"generator_loss": 9.035827}}');
CREATE TABLE totals (
	job_id VARCHAR(32) NOT NULL, 
	rounds BIGINT NOT NULL, 
	client_updates BIGINT NOT NULL, 
	client_failures BIGINT NOT NULL, 
	bytes_down BIGINT NOT NULL, 
	bytes_up BIGINT NOT NULL, 
	actor_restarts BIGINT NOT NULL, 
	seconds_survey FLOAT NOT NULL, 
	seconds_train FLOAT NOT NULL, 
	seconds_server FLOAT NOT NULL, 
	seconds_evaluate FLOAT NOT NULL, 
	seconds_total FLOAT NOT NULL, 
	queue_seconds FLOAT, 
	PRIMARY KEY (job_id)
);
INSERT INTO "totals" VALUES('6am5w9zt8jfn',3,30,0,577200,577200,0,0.0,0.234163,0.032705,2.86500000000000035887e-03,0.269733,0.009644);
INSERT INTO "totals" VALUES('6am5wp0f67d9',4,12,0,312576,14880,0,0.0,1.40253099999999975011e+00,0.214099,1.14060000000000012071e-02,1.628038,0.014189);
CREATE INDEX jobs_by_age ON jobs (created_at, id);
CREATE INDEX jobs_by_name ON jobs (name, id);
CREATE INDEX jobs_by_state ON jobs (state, priority, created_at, id);
CREATE INDEX labels_by_value ON labels ("key", value, job_id);
CREATE INDEX jobs_by_algorithm ON jobs (algorithm, created_at, id);
CREATE INDEX jobs_by_state_and_age ON jobs (state, created_at, id);
COMMIT;
