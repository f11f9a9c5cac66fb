package clusterstate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/certs"
)

func text(number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

func condition(name string, holds bool) []byte {
	message := text(1, name)
	if holds {
		message = protowire.AppendVarint(protowire.AppendTag(message, 2, protowire.VarintType), 1)
	}
	return text(1, string(append(message, text(3, "a reason")...)))
}

// serveRuntime answers the two calls of the CRI at a socket.
func serveRuntime(t *testing.T) (socket string) {
	t.Helper()
	t.Chdir(t.TempDir()) // the path of a socket is short
	socket = "s"
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string][]byte{
		"/runtime.v1.RuntimeService/Version": append(append(text(1, "0.1.0"), text(2, "containerd")...), text(3, "v2.4.0")...),
		"/runtime.v1.RuntimeService/Status":  text(1, string(append(condition("RuntimeReady", true), condition("NetworkReady", false)...))),
	}
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		var request []byte
		if err := stream.RecvMsg(&request); err != nil {
			return err
		}
		return stream.SendMsg(answers[method])
	}))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return socket
}

func TestRuntime_ReadsVersionAndConditions(t *testing.T) {
	r := Runtime(t.Context(), serveRuntime(t))
	if r.Failure.Failed() || r.Name != "containerd" || r.Version != "v2.4.0" || !r.Conditions["RuntimeReady"] || r.Conditions["NetworkReady"] {
		t.Errorf("runtime %+v", r)
	}
	if result := diagnosis.ContainerRuntime(r); result.State != diagnosis.Warning {
		t.Errorf("%+v", result)
	}
	if r := Runtime(t.Context(), filepath.Join(t.TempDir(), "absent")); !r.Failure.Answered {
		t.Errorf("without a socket: %+v", r)
	}
}

func TestRuntime_MalformedAnswerIsNoCrash(t *testing.T) {
	for _, message := range [][]byte{nil, {0xff}, {0x0a, 0x7f, 1}, text(1, "\xff\xff\xff\xff")} {
		eachField(message, func(_ protowire.Number, value []byte) { addCondition(map[string]bool{}, value) })
	}
}

func TestHealthz_AnswerRefusalAndSilence(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hung" {
			<-release
		}
		http.Error(w, "pleg", http.StatusInternalServerError)
	}))
	defer server.Close()
	defer close(release)
	if h := Healthz(t.Context(), server.URL); h.Failure.Failed() || h.Code != 500 || h.Body != "pleg" {
		t.Errorf("%+v", h)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if h := Healthz(short, server.URL+"/hung"); !h.Failure.Failed() || h.Failure.Answered {
		t.Errorf("a silent kubelet: %+v", h)
	}
	if h := Healthz(t.Context(), "http://127.0.0.1:1/healthz"); !h.Failure.Answered {
		t.Errorf("no kubelet: %+v", h)
	}
}

func TestPorts_NamesTheUsedOne(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ports := Ports(t.Context(), map[string][]string{"slicesvc": {listener.Addr().String(), "127.0.0.1:0"}})
	if len(ports) != 2 || !ports[0].Failure.Answered || ports[1].Failure.Failed() {
		t.Errorf("%+v", ports)
	}
}

// The kubelet keeps its certificate and its key in one file beside its kubeconfig.
func TestKubeletIdentity_OfTheFilesOfAKubelet(t *testing.T) {
	authority, err := certs.NewAuthority("cluster", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(certs.NodeLeaf("n1"), time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "kubelet.pem"), append(pair.CertPEM, pair.KeyPEM...), 0o600); err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.AuthInfos["node"] = &clientcmdapi.AuthInfo{ClientCertificate: "kubelet.pem", ClientKey: "kubelet.pem"}
	config.Contexts["c"] = &clientcmdapi.Context{AuthInfo: "node"}
	config.CurrentContext = "c"
	path := filepath.Join(folder, "kubelet.conf")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	if result := diagnosis.KubeletKubeconfig(KubeletIdentity(path), time.Now()); result.State != diagnosis.OK {
		t.Errorf("%+v", result)
	}
	if k := KubeletIdentity(filepath.Join(folder, "absent")); !k.Failure.Answered {
		t.Errorf("without a file: %+v", k)
	}
}

// Only an answer of the other side counts as a refusal.
func TestFailureOf_SilenceIsNoRefusal(t *testing.T) {
	for _, c := range []struct {
		err      error
		answered bool
	}{
		{context.DeadlineExceeded, false},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), false},
		{status.Error(codes.Unavailable, "the connection is draining"), false},
		{errors.New("read: connection reset by peer"), false},
		{status.Error(codes.PermissionDenied, "no"), true},
		{status.Error(codes.Unimplemented, "unknown service"), true},
		{fmt.Errorf("dial: %w", syscall.ECONNREFUSED), true},
		{errors.New("remote error: tls: bad certificate"), true},
		{errors.New("x509: certificate signed by unknown authority"), true},
	} {
		if got := FailureOf(c.err); got.Answered != c.answered || !got.Failed() {
			t.Errorf("%v: %+v, want answered %t", c.err, got, c.answered)
		}
	}
}
