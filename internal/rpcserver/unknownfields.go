package rpcserver

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// messageShape has the fields of a message type that contain messages. The check for unknown fields
// looks at these only, and allocates nothing when there are none.
type messageShape struct {
	fields []fieldShape
}

type fieldShape struct {
	descriptor protoreflect.FieldDescriptor
	// inner is the type of the field's messages: of the elements of a list, of the values of a map.
	inner *messageShape
}

// shapeOf returns the shape of a message type. done has the shapes of types that were seen, as
// types may contain themselves.
func shapeOf(message protoreflect.MessageDescriptor, done map[protoreflect.FullName]*messageShape) *messageShape {
	if shape := done[message.FullName()]; shape != nil {
		return shape
	}
	shape := &messageShape{}
	done[message.FullName()] = shape
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		inner := field.Message()
		if field.IsMap() {
			inner = field.MapValue().Message()
		}
		if inner != nil {
			shape.fields = append(shape.fields, fieldShape{descriptor: field, inner: shapeOf(inner, done)})
		}
	}
	return shape
}

// unknownField is a field that the server does not know. Its path is built while the search
// returns, from the innermost message outwards.
type unknownField struct {
	number  protowire.Number
	message protoreflect.FullName
	path    []string
}

// find returns the first unknown field of a message and of all messages in it, or nil.
func (s *messageShape) find(message protoreflect.Message) *unknownField {
	if raw := message.GetUnknown(); len(raw) > 0 {
		number, _, _ := protowire.ConsumeTag(raw)
		return &unknownField{number: number, message: message.Descriptor().FullName()}
	}
	for i := range s.fields {
		if !message.Has(s.fields[i].descriptor) {
			continue
		}
		if found := s.fields[i].find(message.Get(s.fields[i].descriptor)); found != nil {
			return found
		}
	}
	return nil
}

func (f *fieldShape) find(value protoreflect.Value) *unknownField {
	switch {
	case f.descriptor.IsList():
		list := value.List()
		for i := range list.Len() {
			if found := f.inner.find(list.Get(i).Message()); found != nil {
				return found.in(string(f.descriptor.Name()) + "[" + strconv.Itoa(i) + "]")
			}
		}
		return nil
	case f.descriptor.IsMap():
		return f.findInMap(value.Map())
	default:
		found := f.inner.find(value.Message())
		if found != nil {
			found = found.in(string(f.descriptor.Name()))
		}
		return found
	}
}

func (f *fieldShape) findInMap(values protoreflect.Map) (found *unknownField) {
	values.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		if found = f.inner.find(value.Message()); found != nil {
			found = found.in(fmt.Sprintf("%s[%q]", f.descriptor.Name(), key.String()))
		}
		return found == nil
	})
	return found
}

func (u *unknownField) in(field string) *unknownField {
	u.path = append([]string{field}, u.path...)
	return u
}

// status names the path of the message that has the field; the path of the request itself is empty.
func (u *unknownField) status() error {
	path := shorten(strings.Join(u.path, "."))
	where := "the request"
	if path != "" {
		where = path
	}
	description := fmt.Sprintf("field number %d of %s is unknown to this server", u.number, u.message)
	return rpcerror.New(codes.InvalidArgument, rpcerror.UnknownFieldReason,
		fmt.Sprintf("invalid request: %s: %s; omit it, or update the server", where, description),
		rpcerror.WithField(path, description))
}
