package rangestore

import (
	"bytes"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

const (
	// magic precedes protobuf values of kube-apiserver.
	magic = "k8s\x00"
	kind  = "RangeAllocation"
)

// ErrUnreadable is the error of a stored value that is damaged or has an unknown encoding. It must
// not be written.
var ErrUnreadable = errors.New("stored range cannot be read")

// Range is one stored range. It is immutable; the zero Range cannot be encoded.
type Range struct {
	object corev1.RangeAllocation
	// envelope surrounds the object in protobuf. It is nil for JSON.
	envelope *runtime.Unknown
}

// Text returns the stored range, for example "30000-32767" or "10.96.0.0/16".
func (r Range) Text() string { return r.object.Range }

// Data returns the stored bitmap, which the caller must not modify. Empty means that nothing is
// allocated.
func (r Range) Data() []byte { return r.object.Data }

// With returns the range with another bitmap, which the caller must not modify afterwards.
func (r Range) With(data []byte) Range {
	r.object.Data = data
	return r
}

// Decode decodes a stored value and does not keep raw. Its error wraps ErrUnreadable and says what
// is wrong with the value.
func Decode(raw []byte) (Range, error) {
	var decoded Range
	var err error
	switch {
	case bytes.HasPrefix(raw, []byte(magic)):
		decoded, err = decodeProtobuf(raw[len(magic):])
	case bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{")):
		return decodeJSON(raw)
	default:
		err = errors.New("it begins neither as protobuf of Kubernetes nor as JSON")
	}
	if err != nil {
		return Range{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	again, err := decoded.Encode()
	if err != nil || !bytes.Equal(raw, again) {
		return Range{}, fmt.Errorf("%w: it has parts that are not known here, so a newer version may have written it", ErrUnreadable)
	}
	return decoded, nil
}

func decodeProtobuf(raw []byte) (Range, error) {
	envelope := &runtime.Unknown{}
	if err := envelope.Unmarshal(raw); err != nil {
		return Range{}, fmt.Errorf("its envelope is damaged: %w", err)
	}
	if err := checkType(envelope.TypeMeta); err != nil {
		return Range{}, err
	}
	decoded := Range{envelope: envelope}
	if err := decoded.object.Unmarshal(envelope.Raw); err != nil {
		return Range{}, fmt.Errorf("its object is damaged: %w", err)
	}
	envelope.Raw = nil
	return decoded, nil
}

// decodeJSON rejects unknown and duplicate fields. Writing may change spaces and the order of
// fields, which have no meaning.
func decodeJSON(raw []byte) (Range, error) {
	var decoded Range
	if _, _, err := jsonSerializer().Decode(raw, nil, &decoded.object); err != nil {
		return Range{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if err := checkType(runtime.TypeMeta{APIVersion: decoded.object.APIVersion, Kind: decoded.object.Kind}); err != nil {
		return Range{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return decoded, nil
}

func checkType(is runtime.TypeMeta) error {
	if is.APIVersion != corev1.SchemeGroupVersion.String() || is.Kind != kind {
		return fmt.Errorf("it is a %q of %q, want a %s of %s", is.Kind, is.APIVersion, kind, corev1.SchemeGroupVersion)
	}
	return nil
}

// Encode returns the value as kube-apiserver would store it.
func (r Range) Encode() ([]byte, error) {
	if r.object.Kind == "" && r.envelope == nil {
		return nil, errors.New("encode range: it was never read")
	}
	if r.envelope == nil {
		var out bytes.Buffer
		err := jsonSerializer().Encode(&r.object, &out)
		return out.Bytes(), err
	}
	object, err := r.object.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode range: %w", err)
	}
	envelope := *r.envelope
	envelope.Raw = object
	encoded, err := envelope.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode range: %w", err)
	}
	return append([]byte(magic), encoded...), nil
}

func jsonSerializer() *json.Serializer {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.RangeAllocation{})
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Strict: true})
}
