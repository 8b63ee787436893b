-- When somebody had it done once more, the last time. What a retry policy counts from then on.
ALTER TABLE task ADD COLUMN revived INTEGER;
