package leasewrite

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// codecs are the encodings of kube-apiserver, for Leases only.
type codecs struct {
	json, protobuf runtime.Serializer
}

var serializers = sync.OnceValue(func() codecs {
	scheme := runtime.NewScheme()
	addLease(scheme)
	return codecs{
		json:     jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme, scheme, jsonserializer.SerializerOptions{Strict: true}),
		protobuf: protobuf.NewSerializer(scheme, scheme),
	}
})

// addLease registers Leases.
func addLease(scheme *runtime.Scheme) {
	version := schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1"}
	scheme.AddKnownTypes(version, &coordinationv1.Lease{})
	metav1.AddToGroupVersion(scheme, version)
}

func (c codecs) of(mediaType string) runtime.Serializer {
	if mediaType == Protobuf {
		return c.protobuf
	}
	return c.json
}

var errTrailing = errors.New("the body has more than one value")

// DecodeLease decodes one Lease. A field that this version does not know is an error in JSON.
func DecodeLease(mediaType string, body []byte) (*coordinationv1.Lease, error) {
	if mediaType != Protobuf && !json.Valid(body) {
		return nil, errTrailing
	}
	lease := &coordinationv1.Lease{}
	decoded, kind, err := serializers().of(mediaType).Decode(body, nil, lease)
	if err != nil {
		return nil, fmt.Errorf("decode Lease: %w", err)
	}
	if decoded != lease || *kind != coordinationv1.SchemeGroupVersion.WithKind("Lease") {
		return nil, fmt.Errorf("decode Lease: the body is a %v", kind)
	}
	return lease, nil
}

// errUnknownField says that a protobuf body has a field that this version does not know, or that it
// is encoded in an unusual way. The decoder drops such fields.
var errUnknownField = errors.New("decode Lease: the body has more than is known")

// wholly checks that a decoded Lease is all that its protobuf body has.
func wholly(body []byte, lease *coordinationv1.Lease) error {
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(body[min(len(protobufPrefix), len(body)):]); err != nil {
		return fmt.Errorf("decode Lease: %w", err)
	}
	if len(envelope.Raw) != lease.Size() {
		return errUnknownField
	}
	return nil
}

// EncodeLease encodes a Lease as kube-apiserver does.
func EncodeLease(mediaType string, lease *coordinationv1.Lease) ([]byte, error) {
	typed := lease.DeepCopy()
	typed.SetGroupVersionKind(coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	var body bytes.Buffer
	if err := serializers().of(mediaType).Encode(typed, &body); err != nil {
		return nil, fmt.Errorf("encode Lease: %w", err)
	}
	return body.Bytes(), nil
}

// protobufPrefix is before the envelope of each protobuf body.
const protobufPrefix = "k8s\x00"

// patch is what a patch may have to become a heartbeat.
type patch struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name            string `json:"name"`
		Namespace       string `json:"namespace"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		HolderIdentity       *string           `json:"holderIdentity"`
		LeaseDurationSeconds *int32            `json:"leaseDurationSeconds"`
		RenewTime            *metav1.MicroTime `json:"renewTime"`
	} `json:"spec"`
}

// decodePatch returns the Lease after a patch. Any other field, and a null, which removes a field,
// is an error.
func decodePatch(body []byte, known *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if bytes.Contains(body, []byte("null")) || bytes.Contains(body, []byte("$")) {
		return nil, errors.New("decode patch: it has a null or a directive")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	var p patch
	if err := decoder.Decode(&p); err != nil {
		return nil, fmt.Errorf("decode patch: %w", err)
	}
	if decoder.More() || !json.Valid(body) {
		return nil, errTrailing
	}
	if p.APIVersion != "" && p.APIVersion != coordinationv1.SchemeGroupVersion.String() || p.Kind != "" && p.Kind != "Lease" {
		return nil, errors.New("decode patch: it is for another kind")
	}
	patched := known.DeepCopy()
	set(&patched.Name, p.Metadata.Name)
	set(&patched.Namespace, p.Metadata.Namespace)
	set((*string)(&patched.UID), p.Metadata.UID)
	// A version is a precondition. Without one, a patch applies to any version.
	patched.ResourceVersion = p.Metadata.ResourceVersion
	if p.Spec.HolderIdentity != nil {
		patched.Spec.HolderIdentity = p.Spec.HolderIdentity
	}
	if p.Spec.LeaseDurationSeconds != nil {
		patched.Spec.LeaseDurationSeconds = p.Spec.LeaseDurationSeconds
	}
	patched.Spec.RenewTime = p.Spec.RenewTime
	return patched, nil
}

func set(field *string, value string) {
	if value != "" {
		*field = value
	}
}
