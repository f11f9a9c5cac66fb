package kubeconn

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// ErrUnguarded says that a write does not name the version of its object: an update or a patch has
// no resourceVersion, a delete has no UID as a precondition, or a post is for a subresource. Such a
// write could overwrite what another replica has written under a later term, if it arrives late.
var ErrUnguarded = errors.New("the write does not name the version of its object")

// protobufMagic begins each protobuf body of Kubernetes; a runtime.Unknown follows.
var protobufMagic = []byte("k8s\x00")

// checkGuard returns an error that wraps ErrUnguarded unless the write is safe when it arrives
// late. A create needs no guard, because it fails if the object exists. prefix is that of the paths
// of the server.
func checkGuard(req *http.Request, prefix string) error {
	switch req.Method {
	case http.MethodPost:
		if !creates(strings.TrimPrefix(req.URL.EscapedPath(), prefix)) {
			return fmt.Errorf("%w: a post to a subresource is no create", ErrUnguarded)
		}
		return nil
	case http.MethodPut, http.MethodPatch:
		return checkBody(req, func(body []byte) error {
			var object metav1.PartialObjectMetadata
			if err := decode(body, &object); err != nil {
				return err
			}
			// kube-apiserver takes 0 for any version, as it takes an empty one.
			if object.ResourceVersion == "" || object.ResourceVersion == "0" {
				return fmt.Errorf("%w: metadata.resourceVersion is %q", ErrUnguarded, object.ResourceVersion)
			}
			return nil
		})
	case http.MethodDelete:
		return checkBody(req, func(body []byte) error {
			var options metav1.DeleteOptions
			if err := decode(body, &options); err != nil {
				return err
			}
			if options.Preconditions == nil || options.Preconditions.UID == nil || *options.Preconditions.UID == types.UID("") {
				return fmt.Errorf("%w: preconditions.uid is empty", ErrUnguarded)
			}
			return nil
		})
	default:
		return fmt.Errorf("%w: method %s is unknown", ErrUnguarded, req.Method)
	}
}

// creates says whether a post to this path creates an object. A post to a subresource acts on an
// existing one: an eviction deletes a Pod.
func creates(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		parts = parts[3:]
	default:
		return false
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	return len(parts) == 1
}

// checkBody calls check with the body of req, which can be read again afterwards.
func checkBody(req *http.Request, check func([]byte) error) error {
	if req.Body == nil {
		return check(nil)
	}
	body, err := io.ReadAll(req.Body)
	if err := errors.Join(err, req.Body.Close()); err != nil {
		return fmt.Errorf("read the body: %w", err)
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	return check(body)
}

// protobufMessage is the part of a protobuf message that decode needs.
type protobufMessage interface{ Unmarshal([]byte) error }

// decode reads a body in protobuf, JSON or YAML. Each top-level kind of Kubernetes has its metadata
// in the same field, so metav1.PartialObjectMetadata reads all of them. As kube-apiserver does, it
// ignores a field whose name differs in case.
func decode(body []byte, into protobufMessage) error {
	raw, isProtobuf := bytes.CutPrefix(body, protobufMagic)
	if !isProtobuf {
		text, err := yaml.YAMLToJSON(body)
		if err == nil {
			err = utiljson.Unmarshal(text, into)
		}
		if err != nil {
			return fmt.Errorf("%w: the body is not readable: %w", ErrUnguarded, err)
		}
		return nil
	}
	var unknown runtime.Unknown
	err := unknown.Unmarshal(raw)
	if err == nil {
		err = into.Unmarshal(unknown.Raw)
	}
	if err != nil {
		return fmt.Errorf("%w: the body is not readable: %w", ErrUnguarded, err)
	}
	return nil
}
