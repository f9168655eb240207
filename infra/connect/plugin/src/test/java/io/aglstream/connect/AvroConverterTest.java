package io.aglstream.connect;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.errors.RetriableException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The converter against a registry that answers over HTTP, on loopback. Bodies are written by Avro's own encoder. */
class AvroConverterTest {
    private static final String EVENT = """
        {"type":"record","name":"Event","namespace":"t","fields":[
         {"name":"id","type":"string"},
         {"name":"count","type":["null","long"],"default":null},
         {"name":"kind","type":{"type":"enum","name":"Kind","symbols":["unknown","good"],"default":"unknown"}},
         {"name":"raw","type":"bytes"},
         {"name":"ratio","type":"double"},
         {"name":"tags","type":{"type":"map","values":"int"}},
         {"name":"either","type":["null","int","string"],"default":null},
         {"name":"items","type":{"type":"array","items":
           {"type":"record","name":"Item","fields":[{"name":"ok","type":"boolean"},{"name":"share","type":"float"}]}}}]}""";

    private final Map<Integer, String> schemas = new ConcurrentHashMap<>(Map.of(1, EVENT));
    private final AtomicInteger asked = new AtomicInteger();
    private volatile int status = 200;
    private HttpServer registry;

    @BeforeEach
    void start() throws IOException {
        registry = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        registry.createContext("/schemas/ids/", exchange -> {
            asked.incrementAndGet();
            String path = exchange.getRequestURI().getPath();
            String schema = schemas.get(Integer.parseInt(path.substring(path.lastIndexOf('/') + 1)));
            int answer = status != 200 ? status : schema == null ? 404 : 200;
            byte[] body = ("{\"schema\":" + quoted(schema) + "}").getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(answer, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        registry.start();
    }

    @AfterEach
    void stop() {
        registry.stop(0);
    }

    private static String quoted(String text) {
        return text == null ? "null" : "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ") + "\"";
    }

    private String url() {
        return "http://127.0.0.1:" + registry.getAddress().getPort() + "/";
    }

    private AvroConverter converter(String... more) {
        Map<String, String> config = new HashMap<>(Map.of(ConverterConfig.URL, url()));
        for (int i = 0; i < more.length; i += 2) {
            config.put(more[i], more[i + 1]);
        }
        AvroConverter converter = new AvroConverter();
        converter.configure(config, false);
        return converter;
    }

    private static byte[] body() throws IOException {
        org.apache.avro.Schema schema = new org.apache.avro.Schema.Parser().parse(EVENT);
        GenericRecord event = new GenericData.Record(schema);
        event.put("id", "é\u0000");
        event.put("count", -5L);
        event.put("kind", new GenericData.EnumSymbol(schema.getField("kind").schema(), "good"));
        event.put("raw", ByteBuffer.wrap(new byte[] {0, 1, -1}));
        event.put("ratio", -0.25);
        event.put("tags", Map.of("a", 7));
        event.put("either", "text");
        GenericRecord item = new GenericData.Record(schema.getField("items").schema().getElementType());
        item.put("ok", true);
        item.put("share", 1.5f);
        event.put("items", List.of(item, item));
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
        new GenericDatumWriter<GenericRecord>(schema).write(event, encoder);
        encoder.flush();
        return bytes.toByteArray();
    }

    private static byte[] framed(int id, byte[] body) {
        return ByteBuffer.allocate(5 + body.length).put((byte) 0).putInt(id).put(body).array();
    }

    @Test
    void readsWhatAvroWrote() throws IOException {
        Struct event = (Struct) converter().toConnectData("t", framed(1, body())).value();
        assertEquals("é\u0000", event.get("id"));
        assertEquals(-5L, event.get("count"));
        assertEquals("good", event.get("kind"));
        assertEquals(ByteBuffer.wrap(new byte[] {0, 1, -1}), ByteBuffer.wrap((byte[]) event.get("raw")));
        assertEquals(-0.25, event.get("ratio"));
        assertEquals(Map.of("a", 7), event.get("tags"));
        assertEquals("text", event.getStruct("either").get("string"));
        assertNull(event.getStruct("either").get("int"));
        List<Struct> items = event.getArray("items");
        assertEquals(List.of(true, 1.5f), List.of(items.get(1).get("ok"), items.get(1).get("share")));
        assertTrue(event.schema().field("count").schema().isOptional());
        event.validate();
    }

    @Test
    void readsTheIdFromTheHeader() throws IOException {
        Headers headers = new RecordHeaders().add("__value_schema_id", framed(1, new byte[0]));
        Struct event = (Struct) converter().toConnectData("t", headers, body()).value();
        assertEquals("good", event.get("kind"));
        Headers guid = new RecordHeaders().add("__value_schema_id", new byte[17]);
        assertThrows(DataException.class, () -> converter().toConnectData("t", guid, body()));
    }

    @Test
    void asksOnceForASchemaAndKeepsABoundedNumber() throws IOException {
        schemas.put(2, "\"string\"");
        AvroConverter converter = converter(ConverterConfig.CACHE_SIZE, "1");
        byte[] text = framed(2, new byte[] {2, 'x'});
        byte[] event = framed(1, body());
        converter.toConnectData("t", event);
        converter.toConnectData("t", event);
        assertEquals(1, asked.get());
        assertEquals("x", converter.toConnectData("t", text).value());
        converter.toConnectData("t", event);
        assertEquals(3, asked.get());
    }

    @Test
    void anUnknownIdIsTheRecordsFaultAndNotAskedForAtOnceAgain() {
        AvroConverter converter = converter();
        for (int i = 0; i < 3; i++) {
            assertThrows(DataException.class, () -> converter.toConnectData("t", framed(9, new byte[0])));
        }
        assertEquals(1, asked.get());
        AvroConverter forgetful = converter(ConverterConfig.UNKNOWN_TTL_MS, "0");
        assertThrows(DataException.class, () -> forgetful.toConnectData("t", framed(9, new byte[0])));
        schemas.put(9, "\"null\"");
        assertNull(forgetful.toConnectData("t", framed(9, new byte[0])).value());
    }

    @Test
    void aRegistryThatIsAwayOrRefusesIsWaitedFor() throws IOException {
        AvroConverter converter = converter();
        for (int refusal : new int[] {500, 503, 401, 302}) {
            status = refusal;
            assertThrows(RetriableException.class, () -> converter.toConnectData("t", framed(1, body())));
        }
        status = 200;
        assertEquals("good", ((Struct) converter.toConnectData("t", framed(1, body())).value()).get("kind"));
        AvroConverter nobody = converter(ConverterConfig.URL, "http://127.0.0.1:1");
        assertThrows(RetriableException.class, () -> nobody.toConnectData("t", framed(1, body())));
        AvroConverter second = converter(ConverterConfig.URL, "http://127.0.0.1:1, " + url());
        assertEquals("good", ((Struct) second.toConnectData("t", framed(1, body())).value()).get("kind"));
    }

    @Test
    void everyCutAndEveryChangedByteIsReadOrTheRecordsFault() throws IOException {
        AvroConverter converter = converter();
        byte[] whole = framed(1, body());
        for (int length = 0; length < whole.length; length++) {
            byte[] cut = java.util.Arrays.copyOf(whole, length);
            assertThrows(DataException.class, () -> converter.toConnectData("t", cut));
        }
        for (int at = 5; at < whole.length; at++) {
            for (int value = 0; value < 256; value++) {
                byte[] changed = whole.clone();
                changed[at] = (byte) value;
                try {
                    converter.toConnectData("t", changed);
                } catch (DataException expected) {
                    assertTrue(expected.getMessage().contains("schema 1"));
                }
            }
        }
    }

    @Test
    void hostileSizesAndSchemasAreRefused() {
        AvroConverter small = converter(ConverterConfig.MAX_BODY_BYTES, "10");
        assertThrows(DataException.class, () -> small.toConnectData("t", new byte[11]));
        schemas.put(2, "{\"type\":\"array\",\"items\":\"null\"}");
        byte[] many = {(byte) 0xfe, (byte) 0xff, (byte) 0xff, (byte) 0xff, (byte) 0xff, (byte) 0xff, (byte) 0xff, 0x7f};
        assertThrows(DataException.class, () -> converter().toConnectData("t", framed(2, many)));
        schemas.put(3, "{\"type\":\"record\",\"name\":\"N\",\"fields\":[{\"name\":\"n\",\"type\":[\"null\",\"N\"]}]}");
        assertThrows(DataException.class, () -> converter().toConnectData("t", framed(3, new byte[] {0})));
        schemas.put(4, "{\"type\":\"array\",\"items\":".repeat(3_000) + "\"int\"" + "}".repeat(3_000));
        assertThrows(DataException.class, () -> converter().toConnectData("t", framed(4, new byte[] {0})));
        schemas.put(5, "no schema");
        assertThrows(DataException.class, () -> converter().toConnectData("t", framed(5, new byte[] {0})));
    }

    @Test
    void writingAndBadSettingsAreRefusedByName() {
        DataException error = assertThrows(
            DataException.class, () -> converter().fromConnectData("t", Schema.STRING_SCHEMA, "x"));
        assertTrue(error.getMessage().contains("reads only"));
        assertNull(converter().fromConnectData("t", null, null));
        assertNull(converter().toConnectData("t", null).value());
        assertThrows(ConfigException.class, () -> new AvroConverter().configure(Map.of(), false));
        assertThrows(ConfigException.class, () -> converter(ConverterConfig.URL, "registry:8081"));
    }
}
