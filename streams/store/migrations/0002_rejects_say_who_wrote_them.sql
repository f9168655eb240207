-- A reject comes back as the event that it was, with its producer (JSON).
ALTER TABLE rejects ADD COLUMN producer TEXT NOT NULL DEFAULT '{"name":"","instance":"","version":""}';
