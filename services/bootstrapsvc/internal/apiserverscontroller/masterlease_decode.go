package apiserverscontroller

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// magic begins every value that kube-apiserver stores as protobuf
// (apimachinery's pkg/runtime/serializer/protobuf).
var magic = []byte("k8s\x00")

// decodeMasterLease returns the address that a value names.
func decodeMasterLease(raw []byte) (netip.Addr, error) {
	endpoints, err := endpointsOf(raw)
	if err != nil {
		return netip.Addr{}, err
	}
	if len(endpoints.Subsets) == 0 || len(endpoints.Subsets[0].Addresses) == 0 {
		return netip.Addr{}, errors.New("the value names no address")
	}
	address, err := netip.ParseAddr(endpoints.Subsets[0].Addresses[0].IP)
	if err != nil {
		return netip.Addr{}, errors.New("the value names something that is no IP address")
	}
	return address.Unmap(), nil
}

func endpointsOf(raw []byte) (*corev1.Endpoints, error) {
	encoded, isProtobuf := bytes.CutPrefix(raw, magic)
	if !isProtobuf {
		return endpointsOfJSON(raw)
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(encoded); err != nil {
		return nil, errors.New("the value is no object as kube-apiserver stores them")
	}
	if err := checkKind(envelope.TypeMeta); err != nil {
		return nil, err
	}
	var endpoints corev1.Endpoints
	if err := endpoints.Unmarshal(envelope.Raw); err != nil {
		return nil, errors.New("the value is no Endpoints object")
	}
	return &endpoints, nil
}

// endpointsOfJSON reads what a kube-apiserver writes with --storage-media-type=application/json.
func endpointsOfJSON(raw []byte) (*corev1.Endpoints, error) {
	var endpoints corev1.Endpoints
	if err := json.Unmarshal(raw, &endpoints); err != nil {
		return nil, errors.New("the value is neither protobuf nor JSON of kube-apiserver")
	}
	return &endpoints, checkKind(runtime.TypeMeta{APIVersion: endpoints.APIVersion, Kind: endpoints.Kind})
}

func checkKind(has runtime.TypeMeta) error {
	if has.APIVersion != "v1" || has.Kind != "Endpoints" {
		return fmt.Errorf("the value is of kind %.64q of %.64q, want Endpoints of v1", has.Kind, has.APIVersion)
	}
	return nil
}
