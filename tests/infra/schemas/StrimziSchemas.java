import com.fasterxml.jackson.annotation.JsonTypeInfo;
import com.fasterxml.jackson.databind.JavaType;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.introspect.BeanPropertyDefinition;
import com.fasterxml.jackson.databind.jsontype.NamedType;
import io.fabric8.kubernetes.api.model.IntOrString;
import io.fabric8.kubernetes.api.model.Quantity;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Prints one JSON schema for the Strimzi kinds given as class names: what their API classes read, and no more. */
public class StrimziSchemas {
    private static final ObjectMapper MAPPER =
        new ObjectMapper().enable(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS);
    private static final Map<String, Object> DEFINITIONS = new TreeMap<>();

    public static void main(String[] classNames) throws Exception {
        Map<String, Object> kinds = new TreeMap<>();
        for (String name : classNames) {
            Class<?> kind = Class.forName(name);
            kinds.put(kind.getSimpleName(), schema(MAPPER.constructType(kind)));
        }
        System.out.println(MAPPER.writeValueAsString(Map.of("kinds", kinds, "$defs", DEFINITIONS)));
    }

    private static Map<String, Object> schema(JavaType type) throws Exception {
        Class<?> raw = type.getRawClass();
        if (raw == Quantity.class || raw == IntOrString.class) {
            return new TreeMap<>(Map.of("type", List.of("string", "number")));
        }
        if (raw == String.class) {
            return new TreeMap<>(Map.of("type", "string"));
        }
        if (raw == Boolean.class || raw == boolean.class) {
            return new TreeMap<>(Map.of("type", "boolean"));
        }
        if (List.of(Integer.class, int.class, Long.class, long.class).contains(raw)) {
            return new TreeMap<>(Map.of("type", "integer"));
        }
        if (Number.class.isAssignableFrom(raw) || raw == double.class || raw == float.class) {
            return new TreeMap<>(Map.of("type", "number"));
        }
        if (raw.isEnum()) {
            List<String> names = new ArrayList<>();
            for (Object value : raw.getEnumConstants()) {
                names.add(MAPPER.convertValue(value, String.class));
            }
            return new TreeMap<>(Map.of("enum", names));
        }
        if (type.isMapLikeType()) {
            return new TreeMap<>(Map.of("type", "object", "additionalProperties", schema(type.getContentType())));
        }
        if (type.isCollectionLikeType() || type.isArrayType()) {
            return new TreeMap<>(Map.of("type", "array", "items", schema(type.getContentType())));
        }
        // An object whose kind is known only to Kubernetes, such as one by reference, is not looked into.
        return raw == Object.class || raw.isInterface() ? new TreeMap<>() : reference(type);
    }

    private static Map<String, Object> reference(JavaType type) throws Exception {
        String name = type.getRawClass().getName();
        if (!DEFINITIONS.containsKey(name)) {
            DEFINITIONS.put(name, Map.of());
            DEFINITIONS.put(name, definition(type));
        }
        return new TreeMap<>(Map.of("$ref", "#/$defs/" + name));
    }

    private static Map<String, Object> definition(JavaType type) throws Exception {
        Class<?> raw = type.getRawClass();
        JsonTypeInfo info = raw.getAnnotation(JsonTypeInfo.class);
        List<Object> choices = new ArrayList<>();
        if (info != null) {
            var classes = MAPPER.getDeserializationConfig().introspectClassAnnotations(type).getClassInfo();
            for (NamedType choice : MAPPER.getSubtypeResolver()
                .collectAndResolveSubtypesByTypeId(MAPPER.getDeserializationConfig(), classes)) {
                if (choice.hasName() && choice.getType() != raw) {
                    Map<String, Object> own = object(MAPPER.constructType(choice.getType()));
                    @SuppressWarnings("unchecked")
                    Map<String, Object> properties = (Map<String, Object>) own.get("properties");
                    properties.put(info.property(), Map.of("const", choice.getName()));
                    own.put("required", List.of(info.property()));
                    choices.add(own);
                }
            }
        }
        return choices.isEmpty() ? object(type) : new TreeMap<>(Map.of("oneOf", choices));
    }

    private static Map<String, Object> object(JavaType type) throws Exception {
        Map<String, Object> properties = new TreeMap<>();
        for (BeanPropertyDefinition property :
            MAPPER.getDeserializationConfig().introspect(type).findProperties()) {
            if (property.couldDeserialize() && !property.getName().equals("additionalProperties")) {
                properties.put(property.getName(), schema(property.getPrimaryType()));
            }
        }
        return new TreeMap<>(
            Map.of("type", "object", "properties", properties, "additionalProperties", false));
    }
}
