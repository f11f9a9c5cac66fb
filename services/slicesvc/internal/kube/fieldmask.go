package kube

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errEncoding is returned for bytes that are no protobuf message, or not one that Kubernetes
// encodes.
var errEncoding = errors.New("not a message as Kubernetes encodes it")

// fieldMask selects fields of a message by their numbers. A nil value selects the whole field, any
// other value selects fields of the nested message.
type fieldMask map[protowire.Number]fieldMask

// filter appends the selected fields of a message to to, and returns the result. It decodes to the
// same values as the message, with the other fields unset.
func (f fieldMask) filter(to, message []byte) ([]byte, error) {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil, errEncoding
		}
		size := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if size < 0 {
			return nil, errEncoding
		}
		field := message[:tag+size]
		message = message[tag+size:]
		inner, selected := f[number]
		switch {
		case !selected:
		case inner == nil:
			to = append(to, field...)
		case kind != protowire.BytesType:
			return nil, errEncoding
		default:
			var err error
			if to, err = inner.filterNested(to, number, field[tag:]); err != nil {
				return nil, err
			}
		}
	}
	return to, nil
}

// filterNested appends the selected fields of a nested message. field begins with its length, which
// the caller has checked.
func (f fieldMask) filterNested(to []byte, number protowire.Number, field []byte) ([]byte, error) {
	inner, _ := protowire.ConsumeBytes(field)
	start := len(to)
	to, err := f.filter(to, inner)
	if err != nil {
		return nil, err
	}
	// The length is known only now: append the header and swap it with the filtered bytes.
	var buffer [2 * 10]byte
	header := protowire.AppendTag(buffer[:0], number, protowire.BytesType)
	header = protowire.AppendVarint(header, uint64(len(to)-start))
	end := len(to)
	to = append(to, header...)
	copy(to[start+len(header):], to[start:end])
	copy(to[start:], header)
	return to, nil
}

// unwrap opens the envelope that Kubernetes puts around every protobuf object. object is a part of
// data. ok is false for data without the envelope, or with an encoded object.
func unwrap(data []byte) (apiVersion, kind string, object []byte, ok bool) {
	const magic = "k8s\x00"
	if len(data) < len(magic) || string(data[:len(magic)]) != magic {
		return "", "", nil, false
	}
	data = data[len(magic):]
	for len(data) > 0 {
		number, value, size := consumeBytesField(data)
		if size < 0 {
			return "", "", nil, false
		}
		data = data[size:]
		switch number {
		case 1:
			if apiVersion, kind, ok = decodeTypeMeta(value); !ok {
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

func decodeTypeMeta(message []byte) (apiVersion, kind string, ok bool) {
	for len(message) > 0 {
		number, value, size := consumeBytesField(message)
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

// decodeKey sets the name, namespace, UID and resourceVersion of an encoded object, and returns
// whether it has a name.
func decodeKey(object []byte, into *metav1.ObjectMeta) bool {
	meta, _, ok := splitMeta(object)
	if !ok {
		return false
	}
	for len(meta) > 0 {
		number, kind, size := protowire.ConsumeField(meta)
		if size < 0 {
			return false
		}
		_, value, _ := consumeBytesField(meta)
		meta = meta[size:]
		if kind != protowire.BytesType {
			continue
		}
		switch number {
		case 1:
			into.Name = string(value)
		case 3:
			into.Namespace = string(value)
		case 5:
			into.UID = types.UID(value)
		case 6:
			into.ResourceVersion = string(value)
		}
	}
	return into.Name != ""
}

// splitMeta splits an encoded object into its metadata, which Kubernetes encodes first, and its
// other fields.
func splitMeta(object []byte) (meta, content []byte, ok bool) {
	number, meta, size := consumeBytesField(object)
	if size < 0 || number != 1 {
		return nil, nil, false
	}
	return meta, object[size:], true
}

// consumeBytesField parses a length-delimited field. size is negative for any other field.
func consumeBytesField(message []byte) (number protowire.Number, value []byte, size int) {
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
