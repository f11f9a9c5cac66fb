package httpapi

import (
	"bytes"
	"sync"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/internal/prototime"
)

// maxItemBytes bounds the memory of encoded items. A full memory is emptied.
const maxItemBytes = 16 << 20

// marshaler writes empty fields, too, so that scripts can rely on each field. Watches of the same
// items share their JSON.
type marshaler struct {
	runtime.JSONPb

	mu    sync.Mutex        // guards the fields below
	items map[string][]byte // JSON by type and wire format
	size  int
}

func newMarshaler() runtime.Marshaler {
	return &marshaler{JSONPb: runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{EmitUnpopulated: true}}}
}

// Marshal encodes a line of a watch, which grpc-gateway hands over as {"result": message}, in one
// step. The embedded type would encode it twice.
func (m *marshaler) Marshal(value any) ([]byte, error) {
	line, isMap := value.(map[string]any)
	message, isLine := line["result"].(proto.Message)
	if !isMap || len(line) != 1 || !isLine {
		return m.whole(value)
	}
	text, err := m.line(message.ProtoReflect())
	if err != nil {
		return m.line(prototime.Limited(message).ProtoReflect())
	}
	return text, nil
}

// whole encodes an answer. A replica may send a time that JSON does not have, and one item must not
// fail the answer that it is in.
func (m *marshaler) whole(value any) ([]byte, error) {
	text, err := m.JSONPb.Marshal(value)
	if message, is := value.(proto.Message); is && err != nil {
		return m.JSONPb.Marshal(prototime.Limited(message))
	}
	return text, err
}

// line encodes an event with the JSON of its item that another watch has encoded.
func (m *marshaler) line(event protoreflect.Message) ([]byte, error) {
	field := itemOf(event)
	if field == nil {
		text, err := m.MarshalAppend([]byte(linePrefix), event.Interface())
		return append(text, '}'), err
	}
	item, err := m.item(event.Get(field).Message().Interface())
	if err != nil {
		return nil, err
	}
	content := event.Get(field)
	event.Clear(field) // the event was received for this line only
	rest, err := m.MarshalAppend(nil, event.Interface())
	if err != nil {
		event.Set(field, content)
		return nil, err
	}
	empty := []byte(`"` + field.JSONName() + `":`)
	at := bytes.Index(rest, empty) + len(empty)
	line := make([]byte, 0, len(linePrefix)+len(rest)+len(item)+1)
	line = append(append(append(line, linePrefix...), rest[:at]...), item...)
	line = append(line, bytes.TrimPrefix(bytes.TrimLeft(rest[at:], " "), []byte("null"))...)
	return append(line, '}'), nil
}

const linePrefix = `{"result":`

// itemOf returns the field of an event with its item: a message with a name. It is nil for an event
// without one.
func itemOf(event protoreflect.Message) protoreflect.FieldDescriptor {
	var item protoreflect.FieldDescriptor
	event.Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if message := field.Message(); message != nil && !field.IsList() && !field.IsMap() && message.Fields().ByName("name") != nil {
			item = field
		}
		return item == nil
	})
	return item
}

func (m *marshaler) item(item proto.Message) ([]byte, error) {
	key, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte(item.ProtoReflect().Descriptor().FullName()+"\x00"), item)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	text, known := m.items[string(key)]
	m.mu.Unlock()
	if known {
		return text, nil
	}
	if text, err = m.MarshalAppend(nil, item); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.size += len(key) + len(text); m.items == nil || m.size > maxItemBytes {
		m.items, m.size = map[string][]byte{}, len(key)+len(text)
	}
	m.items[string(key)] = text
	return text, nil
}
