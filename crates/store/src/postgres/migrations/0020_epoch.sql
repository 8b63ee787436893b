-- How often a process gave up what it had under way. A claim, or a submission that takes in hand, says at which count it was begun: if it
-- arrives late, it takes nothing.
ALTER TABLE relais.instance ADD COLUMN epoch bigint NOT NULL DEFAULT 0;
