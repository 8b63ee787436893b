-- How often tasks of the service were taken in hand, or handed out beside those that are. Whoever takes some in one statement finds
-- by it that nobody else did in the meantime.
ALTER TABLE relais.flow ADD COLUMN taken bigint NOT NULL DEFAULT 0;
