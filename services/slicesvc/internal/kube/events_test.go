package kube_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

// silentServer answers no request.
type silentServer struct{}

func (silentServer) RoundTrip(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// One goroutine sends all Events, so one that gets no answer must not hold up the others for ever.
func TestEvents_AnUnansweredEventHoldsUpNoOtherForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		config := &rest.Config{Host: "http://silent", Transport: silentServer{}, QPS: -1}
		clients, err := kube.Connect(config, config)
		must(t, err)
		ended := make(chan error, 1)
		go func() {
			_, err := clients.Events.Create(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"}})
			ended <- err
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the request ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the request has no end")
		}
	})
}
