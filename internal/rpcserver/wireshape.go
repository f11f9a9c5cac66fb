package rpcserver

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

const (
	// maxExpansion is how many times the limit of a message its decoded form may need. Two bytes of
	// an empty item become a hundred in memory. Of 1 MiB, 10,000 items fit with two in each of
	// them, every field set.
	maxExpansion = 8
	// maxCounted is how many lists with a largest number of items one message type may have.
	maxCounted = 8
	// maxDepth bounds how deep messages are in each other. The types of requests contain no type
	// twice, so only a malformed message is deeper.
	maxDepth = 32
)

// Bytes of memory that decoding allocates. A list doubles when it is full, so that an item costs
// its place about three times.
const (
	messageBytes = 40 // without its fields
	itemBytes    = 3 * 8
	textBytes    = 3 * 16
	mapBytes     = 200
	unknownBytes = 3 // for each byte of an unknown field
)

// wireShape describes the encoded form of a message type, as far as it decides about the number of
// items and the memory of a decoded message.
type wireShape struct {
	size   int
	fields map[protowire.Number]*wireField
}

type wireField struct {
	name  string
	kind  protoreflect.Kind
	list  bool // also of a map
	inner *wireShape
	item  int // bytes of one item without what is in it
	// most is the largest number of items that the rules of the field allow; 0 without a rule.
	// counter is the place of its count.
	most, counter int
}

// wireShapeOf returns the shape of a message type. done has the shapes of types that were seen.
func wireShapeOf(message protoreflect.MessageDescriptor, done map[protoreflect.FullName]*wireShape) (*wireShape, error) {
	if shape := done[message.FullName()]; shape != nil {
		return shape, nil
	}
	fields := message.Fields()
	shape := &wireShape{size: messageBytes, fields: make(map[protowire.Number]*wireField, fields.Len())}
	done[message.FullName()] = shape
	counters := 0
	for i := range fields.Len() {
		field := fields.Get(i)
		shape.size += fieldBytes(field)
		described := &wireField{
			name: string(field.Name()), kind: field.Kind(), list: field.Cardinality() == protoreflect.Repeated, most: mostItems(field), counter: counters,
		}
		if described.most > 0 {
			if counters++; counters > maxCounted {
				return nil, fmt.Errorf("message %q has more than %d lists with max_items", message.FullName(), maxCounted)
			}
		}
		if inner := field.Message(); inner != nil {
			var err error
			if described.inner, err = wireShapeOf(inner, done); err != nil {
				return nil, err
			}
		}
		described.item = itemCost(field)
		shape.fields[field.Number()] = described
	}
	return shape, nil
}

// fieldBytes returns the size of a field in a decoded message.
func fieldBytes(field protoreflect.FieldDescriptor) int {
	switch {
	case field.IsList() || field.Kind() == protoreflect.BytesKind:
		return 24
	case field.Kind() == protoreflect.StringKind || field.ContainingOneof() != nil:
		return 16
	default: // a number, or a pointer
		return 8
	}
}

// mostItems returns the max_items or max_pairs of a field; 0 without.
func mostItems(field protoreflect.FieldDescriptor) int {
	rules, _ := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules)
	return int(max(rules.GetRepeated().GetMaxItems(), rules.GetMap().GetMaxPairs()))
}

func itemCost(field protoreflect.FieldDescriptor) int {
	switch {
	case field.IsMap():
		return mapBytes
	case field.Cardinality() != protoreflect.Repeated:
		return 0
	case field.Kind() == protoreflect.StringKind || field.Kind() == protoreflect.BytesKind:
		return textBytes
	default:
		return itemBytes
	}
}

// excess is what an encoded message has too much of. Its path is built while the search returns,
// from the innermost field outwards.
type excess struct {
	most int // items of the path; 0 if the memory is too much
	path []string
}

// check returns what a message has too much of for the limit of its bytes, or nil. It does not
// allocate unless it finds something. A malformed message is left to the decoder, which ends where
// this check ends.
func (s *wireShape) check(message []byte, limit int) *excess {
	left := maxExpansion*limit - s.size
	return s.walk(message, &left, 0)
}

func (s *wireShape) walk(message []byte, left *int, depth int) *excess {
	var counts [maxCounted]int
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		value := message[n:]
		m := protowire.ConsumeFieldValue(number, kind, value)
		if m < 0 {
			return nil
		}
		value, message = value[:m], value[m:]
		field := s.fields[number]
		if field == nil {
			*left -= unknownBytes * (n + m)
		} else if found := field.take(value, kind, &counts, left, depth); found != nil {
			return found
		}
		if *left < 0 {
			return &excess{}
		}
	}
	return nil
}

// take counts the items of one occurrence of a field.
func (f *wireField) take(value []byte, kind protowire.Type, counts *[maxCounted]int, left *int, depth int) *excess {
	items := 1
	if kind == protowire.BytesType {
		value, _ = protowire.ConsumeBytes(value)
		if f.list && isPackable(f.kind) {
			items = packedItems(f.kind, value)
		}
	}
	*left -= items * f.item
	if f.most > 0 {
		if counts[f.counter] += items; counts[f.counter] > f.most {
			return &excess{most: f.most, path: []string{f.name}}
		}
	}
	switch {
	case f.inner != nil && kind == protowire.BytesType && depth < maxDepth:
		*left -= f.inner.size
		if found := f.inner.walk(value, left, depth+1); found != nil {
			return found.in(f, counts)
		}
	case kind == protowire.BytesType && !isPackable(f.kind):
		*left -= len(value)
	}
	return nil
}

func (e *excess) in(field *wireField, counts *[maxCounted]int) *excess {
	name := field.name
	if field.most > 0 {
		name += "[" + strconv.Itoa(counts[field.counter]-1) + "]"
	}
	e.path = append(e.path, name)
	return e
}

func isPackable(kind protoreflect.Kind) bool {
	switch kind {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
		return false
	default:
		return true
	}
}

// packedItems returns the number of packed scalars.
func packedItems(kind protoreflect.Kind, packed []byte) int {
	switch kind {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return len(packed) / 4
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return len(packed) / 8
	}
	items := 0
	for _, b := range packed {
		if b < 0x80 { // the last byte of a number
			items++
		}
	}
	return items
}

// excessive returns the status of a message that has too much of something.
func (c chain) excessive(method string, of *excess, size, limit int) error {
	if of.most == 0 {
		return c.quota.TooLarge(method, size, limit)
	}
	slices.Reverse(of.path)
	path, rule := shorten(strings.Join(of.path, ".")), fmt.Sprintf("must contain no more than %d item(s)", of.most)
	return rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason, "invalid request: "+path+": "+rule, rpcerror.WithField(path, rule))
}

// lastString returns the value of a text field of an encoded message: the last one counts, as for a
// decoder. It is empty without the field, and for a nil field.
func lastString(message []byte, field protoreflect.FieldDescriptor) string {
	if field == nil {
		return ""
	}
	var last []byte
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			break
		}
		m := protowire.ConsumeFieldValue(number, kind, message[n:])
		if m < 0 {
			break
		}
		if number == field.Number() && kind == protowire.BytesType {
			last, _ = protowire.ConsumeBytes(message[n : n+m])
		}
		message = message[n+m:]
	}
	return string(last)
}
