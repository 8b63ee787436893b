-- When somebody had it done once more, the last time. What a retry policy counts from then on.
ALTER TABLE relais.task ADD COLUMN revived timestamptz;
