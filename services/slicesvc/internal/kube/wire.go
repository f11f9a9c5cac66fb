package kube

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errWire is returned for bytes that are no protobuf message, and for messages
// that another encoder made differently than Kubernetes does.
var errWire = errors.New("not a message as Kubernetes encodes it")

// fields are the numbers of a message's fields that are wanted; of a field that
// is a message itself those fields of it, or all if there is no entry for them.
type fields map[protowire.Number]fields

// filter appends to to the wanted fields of a message as they stand there, and
// returns the result. What is decoded from it is what is decoded from the whole,
// save that the other fields have no value.
func (f fields) filter(to, message []byte) ([]byte, error) {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil, errWire
		}
		size := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if size < 0 {
			return nil, errWire
		}
		field := message[:tag+size]
		message = message[tag+size:]
		inner, wanted := f[number]
		switch {
		case !wanted:
		case inner == nil:
			to = append(to, field...)
		case kind != protowire.BytesType:
			return nil, errWire
		default:
			var err error
			if to, err = inner.nest(to, number, field[tag:]); err != nil {
				return nil, err
			}
		}
	}
	return to, nil
}

// nest appends a field that is a message itself; field has its length in front.
func (f fields) nest(to []byte, number protowire.Number, field []byte) ([]byte, error) {
	inner, _ := protowire.ConsumeBytes(field) // checked by whoever measured the field
	start := len(to)
	to, err := f.filter(to, inner)
	if err != nil {
		return nil, err
	}
	// The length is known only now; what was filtered moves up behind it.
	var room [2 * 10]byte
	front := protowire.AppendTag(room[:0], number, protowire.BytesType)
	front = protowire.AppendVarint(front, uint64(len(to)-start))
	end := len(to)
	to = append(to, front...)
	copy(to[start+len(front):], to[start:end])
	copy(to[start:], front)
	return to, nil
}

// envelope opens what Kubernetes wraps around every object in protobuf: the
// object's kind and version, and its bytes, which are part of data. It returns
// ok only for what is wrapped and not encoded further.
func envelope(data []byte) (apiVersion, kind string, object []byte, ok bool) {
	const magic = "k8s\x00"
	if len(data) < len(magic) || string(data[:len(magic)]) != magic {
		return "", "", nil, false
	}
	data = data[len(magic):]
	for len(data) > 0 {
		number, value, size := stringField(data)
		if size < 0 {
			return "", "", nil, false
		}
		data = data[size:]
		switch number {
		case 1:
			if apiVersion, kind, ok = typeMeta(value); !ok {
				return "", "", nil, false
			}
		case 2:
			object = value
		default:
			if len(value) > 0 {
				return "", "", nil, false
			}
		}
	}
	return apiVersion, kind, object, kind != ""
}

func typeMeta(message []byte) (apiVersion, kind string, ok bool) {
	for len(message) > 0 {
		number, value, size := stringField(message)
		if size < 0 {
			return "", "", false
		}
		message = message[size:]
		switch number {
		case 1:
			apiVersion = string(value)
		case 2:
			kind = string(value)
		}
	}
	return apiVersion, kind, true
}

// stringField reads the first field of a message that has only fields with a
// length; size is how long it is, negative for any other.
func stringField(message []byte) (number protowire.Number, value []byte, size int) {
	number, kind, tag := protowire.ConsumeTag(message)
	if tag < 0 || kind != protowire.BytesType {
		return 0, nil, -1
	}
	value, size = protowire.ConsumeBytes(message[tag:])
	if size < 0 {
		return 0, nil, -1
	}
	return number, value, tag + size
}

// nameObject reads what tells an object from others out of its message, and reports
// whether it could.
func nameObject(object []byte, as *metav1.ObjectMeta) bool {
	number, meta, size := stringField(object) // which Kubernetes encodes first
	if size < 0 || number != 1 {
		return false
	}
	for len(meta) > 0 {
		number, kind, size := protowire.ConsumeField(meta)
		if size < 0 {
			return false
		}
		_, value, _ := stringField(meta)
		meta = meta[size:]
		if kind != protowire.BytesType {
			continue
		}
		switch number {
		case 1:
			as.Name = string(value)
		case 3:
			as.Namespace = string(value)
		case 5:
			as.UID = types.UID(value)
		case 6:
			as.ResourceVersion = string(value)
		}
	}
	return as.Name != ""
}
