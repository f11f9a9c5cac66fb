package leasewrite

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubejson "sigs.k8s.io/json"
)

// protobufMagic begins each protobuf message of kube-apiserver.
var protobufMagic = []byte("k8s\x00")

var errTrailing = errors.New("the body has more than one value")

// DecodeLease decodes one Lease. A field that this version does not know is an error in JSON.
func DecodeLease(mediaType string, body []byte) (*coordinationv1.Lease, error) {
	if mediaType != Protobuf && !json.Valid(body) {
		return nil, errTrailing
	}
	lease, decode := &coordinationv1.Lease{}, decodeJSON
	if mediaType == Protobuf {
		decode = decodeProtobuf
	}
	if err := decode(body, lease); err != nil {
		return nil, fmt.Errorf("decode Lease: %w", err)
	}
	if !isLease(lease.TypeMeta) {
		return nil, fmt.Errorf("decode Lease: the body is a %v", lease.TypeMeta)
	}
	return lease, nil
}

// isLease says whether a type is that of Leases. The URL of the request says it if the body does
// not.
func isLease(t metav1.TypeMeta) bool {
	return cmp.Or(t.APIVersion, leaseType.APIVersion) == leaseType.APIVersion && cmp.Or(t.Kind, leaseType.Kind) == leaseType.Kind
}

var leaseType = metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"}

func decodeJSON(body []byte, lease *coordinationv1.Lease) error {
	problems, err := kubejson.UnmarshalStrict(body, lease)
	return errors.Join(append(problems, err)...)
}

func decodeProtobuf(body []byte, lease *coordinationv1.Lease) error {
	message, found := bytes.CutPrefix(body, protobufMagic)
	if !found {
		return errors.New("the body is no protobuf message of kube-apiserver")
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(message); err != nil {
		return err
	}
	if envelope.ContentEncoding != "" || envelope.ContentType != "" {
		return fmt.Errorf("the message has the encoding %q %q", envelope.ContentType, envelope.ContentEncoding)
	}
	if err := lease.Unmarshal(envelope.Raw); err != nil {
		return err
	}
	lease.APIVersion, lease.Kind = envelope.APIVersion, envelope.Kind
	return nil
}

// EncodeLease encodes a Lease as kube-apiserver does.
func EncodeLease(mediaType string, lease *coordinationv1.Lease) ([]byte, error) {
	typed := lease.DeepCopy()
	typed.TypeMeta = leaseType
	body, err := encode(mediaType, typed)
	if err != nil {
		return nil, fmt.Errorf("encode Lease: %w", err)
	}
	return body, nil
}

func encode(mediaType string, lease *coordinationv1.Lease) ([]byte, error) {
	if mediaType != Protobuf {
		body, err := json.Marshal(lease)
		return append(body, '\n'), err
	}
	raw, err := lease.Marshal()
	if err != nil {
		return nil, err
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: leaseType.APIVersion, Kind: leaseType.Kind}, Raw: raw}
	message, err := envelope.Marshal()
	return append(bytes.Clone(protobufMagic), message...), err
}

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
