package io.aglstream.connect;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.NameValidator;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.errors.RetriableException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The schemas of a registry by id, asked for once each and kept within a bound. Thread-safe. */
final class RegisteredSchemas {
    /** A schema as Avro writes it and as Connect sees it. */
    record Entry(org.apache.avro.Schema avro, Schema connect) {}

    private static final Logger LOG = LoggerFactory.getLogger(RegisteredSchemas.class);

    private final HttpClient http;
    private final ObjectMapper json = new ObjectMapper();
    private final List<String> urls;
    private final Duration timeout;
    private final String authorization;
    private final long unknownTtlNanos;
    private final Map<Integer, Entry> known;
    private final Map<Integer, Long> unknownSince;

    RegisteredSchemas(ConverterConfig config) {
        urls = config.getList(ConverterConfig.URL).stream().map(url -> url.strip().replaceAll("/+$", "")).toList();
        for (String url : urls) {
            if (!url.matches("https?://.+")) {
                throw new ConfigException(ConverterConfig.URL, url, "must begin with http:// or https://");
            }
        }
        timeout = Duration.ofMillis(config.getInt(ConverterConfig.TIMEOUT_MS));
        String user = config.getPassword(ConverterConfig.USER_INFO).value();
        authorization = user.isEmpty()
            ? null : "Basic " + Base64.getEncoder().encodeToString(user.getBytes(StandardCharsets.UTF_8));
        unknownTtlNanos = Duration.ofMillis(config.getLong(ConverterConfig.UNKNOWN_TTL_MS)).toNanos();
        known = leastUsedFirst(config.getInt(ConverterConfig.CACHE_SIZE));
        unknownSince = leastUsedFirst(config.getInt(ConverterConfig.CACHE_SIZE));
        http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(timeout).build();
    }

    private static <V> Map<Integer, V> leastUsedFirst(int size) {
        return new LinkedHashMap<>(16, 0.75f, true) {
            private static final long serialVersionUID = 1L;

            @Override
            protected boolean removeEldestEntry(Map.Entry<Integer, V> eldest) {
                return size() > size;
            }
        };
    }

    /** Blocks while the registry is asked. DataException: it has no such schema. RetriableException: no answer. */
    synchronized Entry get(int id) {
        Entry entry = known.get(id);
        if (entry != null) {
            return entry;
        }
        Long since = unknownSince.get(id);
        if (since != null && System.nanoTime() - since < unknownTtlNanos) {
            throw unknown(id);
        }
        String text = ask(id);
        if (text == null) {
            unknownSince.put(id, System.nanoTime());
            throw unknown(id);
        }
        unknownSince.remove(id);
        entry = parse(id, text);
        known.put(id, entry);
        return entry;
    }

    private DataException unknown(int id) {
        return new DataException("schema id " + id + " is unknown to the registry at " + String.join(", ", urls));
    }

    private static Entry parse(int id, String text) {
        try {
            // Names and defaults were the registry's to check; a reader needs neither.
            org.apache.avro.Schema avro =
                new org.apache.avro.Schema.Parser(NameValidator.NO_VALIDATION).setValidateDefaults(false).parse(text);
            return new Entry(avro, ConnectSchemas.of(avro));
        } catch (AvroRuntimeException | StackOverflowError error) {
            throw new DataException("schema id " + id + " is no Avro schema: " + error, error);
        }
    }

    /** The schema's text; null when the first registry that answers does not have it. */
    private String ask(int id) {
        String why = "";
        for (String url : urls) {
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + "/schemas/ids/" + id))
                .timeout(timeout)
                .header("Accept", "application/vnd.schemaregistry.v1+json, application/json");
            if (authorization != null) {
                request.header("Authorization", authorization);
            }
            try {
                HttpResponse<String> answer = http.send(request.build(), HttpResponse.BodyHandlers.ofString());
                if (answer.statusCode() == 404) {
                    return null;
                }
                JsonNode text = answer.statusCode() == 200 ? json.readTree(answer.body()).get("schema") : null;
                if (text != null && text.isTextual()) {
                    return text.asText();
                }
                why = url + " answered " + answer.statusCode() + (answer.statusCode() == 200 ? " without a schema" : "");
            } catch (IOException error) {
                why = url + " does not answer (" + error + ")";
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new RetriableException("interrupted while asking " + url + " for schema id " + id, error);
            }
        }
        // Connect repeats a retriable call without a word, and somebody will wonder why no row arrives.
        LOG.warn("schema id {}: {}; its records wait", id, why);
        throw new RetriableException("schema id " + id + ": " + why + "; check " + ConverterConfig.URL);
    }
}
