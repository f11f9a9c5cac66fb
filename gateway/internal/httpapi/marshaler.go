package httpapi

import (
	"bytes"
	"sync"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
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
		return m.JSONPb.Marshal(value)
	}
	text, err := m.appendEvent([]byte(`{"result":`), message.ProtoReflect())
	if err != nil {
		return nil, err
	}
	return append(text, '}'), nil
}

// appendEvent encodes an event with the JSON of its item that another watch has encoded.
func (m *marshaler) appendEvent(text []byte, event protoreflect.Message) ([]byte, error) {
	field := itemOf(event)
	if field == nil {
		return m.MarshalAppend(text, event.Interface())
	}
	item, err := m.item(event.Get(field).Message().Interface())
	if err != nil {
		return nil, err
	}
	event.Clear(field) // the event was received for this line only
	if text, err = m.MarshalAppend(text, event.Interface()); err != nil {
		return nil, err
	}
	empty := []byte(`"` + field.JSONName() + `":`)
	at := bytes.Index(text, empty) + len(empty)
	return bytes.Join([][]byte{text[:at], item, bytes.TrimPrefix(bytes.TrimLeft(text[at:], " "), []byte("null"))}, nil), nil
}

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
