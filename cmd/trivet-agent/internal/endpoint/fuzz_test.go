package endpoint

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/leasewrite"
)

// FuzzEndpoint sends hostile requests of the node's own certificate, and of none. Each is answered
// within a bound, and no answer is a failure of the endpoint. Only a write of the node's own Lease
// becomes a heartbeat, and a caller without a certificate gets nothing.
func FuzzEndpoint(f *testing.F) {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: "kube-node-lease"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(node), LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Unix(1_800_000_000, 0)}},
	}
	methods := []string{http.MethodPut, http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions, "TRACE"}
	types := []string{leasewrite.Protobuf, "application/json", "application/apply-patch+yaml", "application/json;charset=\xff", "", "application/merge-patch+json"}
	for i, form := range []string{leasewrite.Protobuf, "application/json"} {
		body, err := leasewrite.EncodeLease(form, lease)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(0), byte(i), byte(0), leasesPath+"/"+node, body)
		f.Add(byte(0), byte(i), byte(0), leasesPath+"/"+node+"?dryRun=All", body)
		f.Add(byte(0), byte(i), byte(1), leasesPath+"/"+node, body)
		f.Add(byte(0), byte(1-i), byte(2), leasesPath+"/"+node, body[:len(body)-3])
	}
	for i, target := range []string{
		leasesPath + "/other", leasesPath + "/%2e%2e/leases/" + node, leasesPath + "//" + node, leasesPath + "/" + node + "/status", leasesPath + "/" + node + "%00", "/api/v1/nodes?watch=1&\xff", "/../../",
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", "*", "/a b", "/api?resourceVersion=" + strings.Repeat("9", 3000),
	} {
		f.Add(byte(i), byte(i), byte(i%3), target, []byte(`{"kind":"Lease","kind":"Pod","metadata":{"name":"node-1","name":"x"}}`))
		f.Add(byte(0), byte(1), byte(0), target, []byte(strings.Repeat(`{"a":`, 5000)))
	}
	fx := newFixture(f, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // as kube-apiserver does
		echo(w, r)
	}))
	kubelet, stranger := fx.kubelet(), fx.client(nil, false)
	f.Fuzz(func(t *testing.T, method, mediaType, how byte, target string, body []byte) {
		parsed, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") || strings.ContainsAny(target, " \r\n\t") {
			return // net/http does not send it
		}
		client := kubelet
		if how%4 == 3 {
			client = stranger
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		sent := methods[int(method)%len(methods)]
		request, err := http.NewRequestWithContext(ctx, sent, fx.url, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.URL.Opaque = target
		request.Header.Set("Content-Type", strings.ToValidUTF8(types[int(mediaType)%len(types)], "?"))
		switch how % 4 {
		case 1:
			request.Header.Set("Impersonate-User", "system:masters\u202e")
		case 2:
			request.Header.Set("X-Remote-User", "admin")
			if body != nil {
				request.ContentLength = -1
			}
		}
		before := fx.leasesvc.count()
		reply, err := client.Do(request)
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) {
				t.Errorf("%s %q: %v", sent, target, err)
			}
			return
		}
		defer reply.Body.Close()
		text, err := io.ReadAll(io.LimitReader(reply.Body, 1<<20))
		if err != nil {
			t.Errorf("%s %q: %s, and then %v", sent, target, reply.Status, err)
		}
		if reply.StatusCode >= 500 {
			t.Errorf("%s %q: %s: %.300s", sent, target, reply.Status, text)
		}
		if client == stranger && reply.StatusCode < 400 {
			t.Errorf("%s %q without a certificate: %s", sent, target, reply.Status)
		}
		if strings.Contains(string(text), "X-Remote-User: admin") {
			t.Errorf("%s %q: a header of a front proxy passes", sent, target)
		}
		if fx.leasesvc.count() > before && (client == stranger || !strings.HasPrefix(parsed.Path, leasesPath+"/"+node)) {
			t.Errorf("%s %q becomes a heartbeat", sent, target)
		}
	})
}
