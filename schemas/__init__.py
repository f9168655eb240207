"""Events of agl-stream: Avro schemas, topics, codec, registry, ids, clocks. Imports nothing of the other rooms."""
