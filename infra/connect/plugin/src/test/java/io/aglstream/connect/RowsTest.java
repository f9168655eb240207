package io.aglstream.connect;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.sql.SQLException;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.sink.SinkRecord;
import org.junit.jupiter.api.Test;

class RowsTest {
    private static final Schema OWNER = SchemaBuilder.struct().optional().field("name", Schema.STRING_SCHEMA).build();
    private static final Schema ITEM = SchemaBuilder.struct()
        .field("n", Schema.INT32_SCHEMA).field("ids", Schema.BYTES_SCHEMA).field("ended_at_us", Schema.INT64_SCHEMA).build();
    private static final Schema EVENT = SchemaBuilder.struct().name("Event")
        .field("id", Schema.STRING_SCHEMA)
        .field("occurred_at_us", Schema.INT64_SCHEMA)
        .field("owner", OWNER)
        .field("tags", SchemaBuilder.array(Schema.STRING_SCHEMA).build())
        .field("items", SchemaBuilder.array(ITEM).build())
        .build();

    private static Struct event(long occurredAtUs) {
        Struct item = new Struct(ITEM).put("n", 1).put("ids", ByteBuffer.allocate(12)).put("ended_at_us", 0L);
        return new Struct(EVENT).put("id", "a\0b").put("occurred_at_us", occurredAtUs)
            .put("owner", new Struct(OWNER).put("name", "o")).put("tags", List.of("x\0", "\\u0000"))
            .put("items", List.of(item, new Struct(ITEM).put("n", 2).put("ids", new byte[4]).put("ended_at_us", 1L)));
    }

    private static SinkRecord record(Object value) {
        return new SinkRecord("t", 3, null, null, null, value, 77, 1_500L, TimestampType.CREATE_TIME);
    }

    private static Rows rows(String... config) {
        Map<String, String> properties = new java.util.HashMap<>(Map.of("primary.key.fields", "id"));
        for (int i = 0; i < config.length; i += 2) {
            properties.put(config[i], config[i + 1]);
        }
        return new Rows(new RowsConfig(properties));
    }

    @Test
    void aRecordIsARowOfFlatColumns() {
        Struct row = (Struct) rows("rows.exclude", "items", "rows.position", "true").of(record(event(1_000_001))).get(0).value();
        assertEquals("a\ufffdb", row.get("id"));
        assertEquals("o", row.get("owner_name"));
        assertEquals("1970-01-01T00:00:01.000001Z", row.get("occurred_at"));
        assertEquals("[\"x\ufffd\",\"\\\\u0000\"]", row.get("tags"));
        assertEquals(List.of(3, 77L), List.of(row.get("log_partition"), row.get("log_offset")));
        assertNull(row.schema().field("items"));
        assertTrue(row.schema().field("owner_name").schema().isOptional());
        row.validate();
    }

    @Test
    void theTimeOfTheLogStandsInForNone() {
        Struct row = (Struct) rows().of(record(event(0))).get(0).value();
        assertEquals("1970-01-01T00:00:01.500Z", row.get("occurred_at"));
    }

    @Test
    void anArrayOfRecordsIsARowEach() {
        Rows rows = rows("rows.explode", "items", "rows.parent", "id,owner_name:by,gone", "rows.counts", "ids:id_count");
        List<SinkRecord> made = rows.of(record(event(1)));
        assertEquals(2, made.size());
        Struct first = (Struct) made.get(0).value();
        assertEquals(List.of("id", "by", "n", "id_count", "ended_at"),
            first.schema().fields().stream().map(field -> field.name()).toList());
        assertEquals(List.of("o", 1, 3), List.of(first.get("by"), first.get("n"), first.get("id_count")));
        assertNull(first.get("ended_at"));
        assertEquals(1, ((Struct) made.get(1).value()).get("id_count"));
    }

    @Test
    void tombstonesHaveNoRowsAndOtherValuesAreRefused() {
        assertEquals(List.of(), rows().of(record(null)));
        assertThrows(DataException.class, () -> rows().of(record("text")));
        assertThrows(DataException.class, () -> rows("rows.explode", "tags").of(record(event(1))));
        assertThrows(DataException.class, () -> rows("primary.key.fields", "missing").of(record(event(1))));
    }

    @Test
    void blameFollowsTheState() {
        assertEquals(Failure.RECORD, Failure.of(new ConnectException(new SQLException("x", "22021"))));
        assertEquals(Failure.RECORD, Failure.of(new ConnectException(new SQLException("x", "23514"))));
        assertEquals(Failure.OUTAGE, Failure.of(new ConnectException(new SQLException("x", "57P01"))));
        assertEquals(Failure.OUTAGE, Failure.of(new ConnectException(new SQLException("x", "53100"))));
        assertEquals(Failure.OTHER, Failure.of(new ConnectException(new SQLException("x", "42804"))));
        assertEquals(Failure.OTHER, Failure.of(new IllegalStateException("x")));
        SQLException batch = new SQLException("batch", "23505");
        batch.setNextException(new SQLException("gone", "08006"));
        assertEquals(Failure.OUTAGE, Failure.of(batch));
    }
}
