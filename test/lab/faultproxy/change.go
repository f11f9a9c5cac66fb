package faultproxy

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"
)

// Change is one request that changed an object.
type Change struct {
	Request Request
	// Received is when the proxy had the request, and Answered when it had the answer.
	Received, Answered time.Time
	// Namespace, Name and Revision are those of the object in the answer. Revision is its
	// resourceVersion, or 0 for an answer without an object, as after some deletions.
	Namespace, Name string
	Revision        int64
}

// receivedKey is the key of the time at which the proxy received a request.
type receivedKey struct{}

// Record calls record after each request that changed an object, from any goroutine. There is one
// record function at a time.
func (p *KubeProxy) Record(record func(Change)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record = record
}

// recordChange reads the answer to a change and puts it back.
func (p *KubeProxy) recordChange(request Request, response *http.Response) error {
	p.mu.Lock()
	record := p.record
	p.mu.Unlock()
	switch request.Verb {
	case "create", "update", "patch", "delete":
	default:
		return nil
	}
	if record == nil || request.Resource == "" || response.StatusCode/100 != 2 {
		return nil
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	received, _ := response.Request.Context().Value(receivedKey{}).(time.Time)
	change := Change{
		Request: request, Received: received, Answered: time.Now(), Namespace: request.Namespace, Name: request.Name,
	}
	if object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil); err == nil {
		if accessor, err := meta.Accessor(object); err == nil {
			change.Namespace, change.Name = accessor.GetNamespace(), accessor.GetName()
			// An object without a version, such as a review, leaves 0.
			change.Revision, _ = strconv.ParseInt(accessor.GetResourceVersion(), 10, 64)
		}
	}
	record(change)
	return nil
}
