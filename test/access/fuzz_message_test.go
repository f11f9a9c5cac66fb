package access

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// hostileTexts are values of text fields that names, tokens and paths must not break on.
var hostileTexts = []string{
	"", "-", ".", "..", "../../etc/passwd", "a/b/c", "//", "*", strings.Repeat("a", 63), strings.Repeat("a", 64),
	strings.Repeat("a", 254), strings.Repeat("n/", 300), strings.Repeat("x", 70_000), "A", "a\x00b", "a\nb", "a\r\nX-Injected: 1", "\x1b[31mred\x1b[0m",
	"\u202egnp.exe", "\ufeff", "é", "İ", "<script>alert(1)</script>", "' OR 1=1 --", "%s%n%00", "${jndi:ldap://x}", "9999999999999999999999",
	"namespaces/-", "namespaces/../serviceslices/x", "namespaces/default/serviceslices/", "nodes/", "nodes/" + ownNode, "nodes/" + otherNode,
	"nodes/\u202e", "zones/\x1b[2J", "findings/..", "repairplans/" + strings.Repeat("a", 300), "repairs/%2e%2e", "shards/leasesvc/-1", "shards/leasesvc/99999999999",
	"AAAA", "e30", "eyJ2IjoxfQ==", "v1.AAAAAAAAAAAAAAAAAAAAAA", notUTF8,
}

// notUTF8 stands for bytes that protobuf does not encode as text; see encode.
const notUTF8 = "~not-utf8~"

var hostileNumbers = []int64{0, 1, -1, 2, 1000, 1001, 10_001, 1e9, math.MaxInt32, math.MinInt32, math.MaxUint32, math.MaxInt64, math.MinInt64}

// hostileTimes are the seconds of timestamps and durations: among them the first and the last ones
// that protobuf allows, and those beside them.
var hostileTimes = []int64{0, -1, 1, -62_135_596_800, -62_135_596_801, 253_402_300_799, 253_402_300_800, 315_576_000_000, 315_576_000_001, -315_576_000_001, math.MaxInt64, math.MinInt64}

// choices are decisions that are read from the bytes of a fuzzed input. After the end all are 0.
type choices struct{ rest []byte }

func (c *choices) byte() byte {
	if len(c.rest) == 0 {
		return 0
	}
	first := c.rest[0]
	c.rest = c.rest[1:]
	return first
}

func (c *choices) number() int64 {
	if pick := int(c.byte()); pick < 2*len(hostileNumbers) {
		return hostileNumbers[pick%len(hostileNumbers)]
	}
	var raw [8]byte
	for i := range raw {
		raw[i] = c.byte()
	}
	return int64(binary.LittleEndian.Uint64(raw[:]))
}

func (c *choices) text() string {
	if pick := int(c.byte()); pick < 4*len(hostileTexts) {
		return hostileTexts[pick%len(hostileTexts)]
	}
	length := min(int(c.byte()), len(c.rest))
	raw := c.rest[:length]
	c.rest = c.rest[length:]
	return strings.ToValidUTF8(string(raw), notUTF8)
}

// maxChanges bounds the changes of one message.
const maxChanges = 16

// disturb changes fields of a valid message as the choices say.
func disturb(message protoreflect.Message, c *choices) {
	for range maxChanges {
		if len(c.rest) == 0 {
			return
		}
		disturbField(message, c)
	}
}

func disturbField(message protoreflect.Message, c *choices) {
	for {
		fields := message.Descriptor().Fields()
		if fields.Len() == 0 {
			message.SetUnknown(protoreflect.RawFields{0xf8, 0x3f, c.byte() & 0x7f})
			return
		}
		field := fields.Get(int(c.byte()) % fields.Len())
		switch how := c.byte(); {
		case how%16 == 15:
			message.SetUnknown(protoreflect.RawFields{0xf8, 0x3f, how & 0x7f})
			return
		case how%16 == 14:
			message.Clear(field)
			return
		case field.IsMap():
			value := message.Mutable(field).Map()
			value.Set(c.scalar(field.MapKey()).MapKey(), c.value(field.MapValue(), value.NewValue))
			return
		case field.IsList():
			c.list(message.Mutable(field).List(), field, how)
			return
		case field.Message() == nil:
			message.Set(field, c.scalar(field))
			return
		case isTime(field.Message()):
			c.time(message.Mutable(field).Message())
			return
		}
		message = message.Mutable(field).Message()
	}
}

// repetitions are the lengths that one choice makes of a list with one value.
var repetitions = []int{1, 2, 17, 1001, 10_001}

func (c *choices) list(list protoreflect.List, field protoreflect.FieldDescriptor, how byte) {
	if list.Len() > 0 && how%2 == 0 && field.Message() != nil {
		disturbField(list.Get(int(c.byte())%list.Len()).Message(), c)
		return
	}
	value := c.value(field, list.NewElement)
	for range repetitions[int(how/2)%len(repetitions)] {
		list.Append(value)
	}
}

func (c *choices) value(field protoreflect.FieldDescriptor, empty func() protoreflect.Value) protoreflect.Value {
	if field.Message() == nil {
		return c.scalar(field)
	}
	made := empty()
	if isTime(field.Message()) {
		c.time(made.Message())
	} else if made.Message().Descriptor().Fields().Len() > 0 {
		disturbField(made.Message(), c)
	}
	return made
}

func isTime(message protoreflect.MessageDescriptor) bool {
	return message.FullName() == "google.protobuf.Timestamp" || message.FullName() == "google.protobuf.Duration"
}

func (c *choices) time(message protoreflect.Message) {
	fields := message.Descriptor().Fields()
	message.Set(fields.ByName("seconds"), protoreflect.ValueOfInt64(hostileTimes[int(c.byte())%len(hostileTimes)]))
	message.Set(fields.ByName("nanos"), protoreflect.ValueOfInt32(int32(c.number())))
}

func (c *choices) scalar(field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(c.byte()%2 == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(c.number()))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(c.number()))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(c.number()))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(c.number())
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(c.number()))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(c.float()))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(c.float())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(c.text()))
	default:
		return protoreflect.ValueOfString(c.text())
	}
}

func (c *choices) float() float64 {
	values := []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64, -1, 0.5}
	return values[int(c.byte())%len(values)]
}

// encode returns the bytes of a message, with notUTF8 replaced by bytes of the same length.
func encode(message proto.Message) ([]byte, error) {
	encoded, err := proto.Marshal(message)
	return bytes.ReplaceAll(encoded, []byte(notUTF8), []byte("\xff\xfe\xc0\xaf\xed\xa0\x80\xf8\x88\x80")), err
}
