package clusterstate

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/certs"
)

const (
	// maxBody limits the answer of a kubelet.
	maxBody = 4 << 10
	// maxFile limits the size of the kubelet's certificate file.
	maxFile = 1 << 20
)

// Ports tries to listen on addresses of this machine, by server.
func Ports(ctx context.Context, addresses map[string][]string) []diagnosis.Port {
	var ports []diagnosis.Port
	for server, list := range addresses {
		for _, address := range list {
			port := diagnosis.Port{Server: server, Address: address}
			listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
			if err != nil {
				port.Failure = diagnosis.Failure{Text: err.Error(), Answered: errors.Is(err, syscall.EADDRINUSE)}
			} else {
				_ = listener.Close()
			}
			ports = append(ports, port)
		}
	}
	return ports
}

// Healthz asks the kubelet of this machine.
func Healthz(ctx context.Context, url string) diagnosis.Healthz {
	h := diagnosis.Healthz{URL: url}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		h.Failure = FailureOf(err)
		return h
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		h.Failure = FailureOf(err)
		return h
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	h.Code, h.Body = response.StatusCode, strings.TrimSpace(string(body))
	if err != nil {
		h.Failure = FailureOf(err)
	}
	return h
}

// KubeletIdentity reads the kubelet's kubeconfig and its certificate.
func KubeletIdentity(path string) diagnosis.KubeletIdentity {
	k := diagnosis.KubeletIdentity{Path: path}
	failed := func(err error) diagnosis.KubeletIdentity {
		k.Failure = diagnosis.Failure{Text: err.Error(), Answered: !errors.Is(err, os.ErrPermission)}
		return k
	}
	certificate, file, err := kubeletCertificate(path)
	if err != nil {
		return failed(err)
	}
	k.User, k.Groups = certificate.Subject.CommonName, certificate.Subject.Organization
	k.Certificate = diagnosis.Certificate{Name: file, NotBefore: certificate.NotBefore, NotAfter: certificate.NotAfter}
	return k
}

func kubeletCertificate(path string) (*x509.Certificate, string, error) {
	kubeconfig, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, "", err
	}
	current := kubeconfig.Contexts[kubeconfig.CurrentContext]
	if current == nil || kubeconfig.AuthInfos[current.AuthInfo] == nil {
		return nil, "", fmt.Errorf("its current context %q has no user", kubeconfig.CurrentContext)
	}
	user := kubeconfig.AuthInfos[current.AuthInfo]
	text, file := user.ClientCertificateData, path
	if len(text) == 0 {
		if user.ClientCertificate == "" {
			return nil, "", errors.New("its user has no client certificate")
		}
		if file = user.ClientCertificate; !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(path), file)
		}
		if text, err = readLimited(file); err != nil {
			return nil, "", err
		}
	}
	chain, err := certs.ParseCertificates(certificatesIn(text))
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", file, err)
	}
	return chain[0], file, nil
}

// certificatesIn returns the certificates of a PEM text. The kubelet keeps its key in the same
// file.
func certificatesIn(text []byte) []byte {
	var kept []byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			kept = append(kept, pem.EncodeToMemory(block)...)
		}
	}
	return kept
}

func readLimited(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxFile))
}

// Runtime asks the container runtime for its version and its conditions, by the CRI of kubelets.
// The few fields of the messages are read without the module of the CRI.
func Runtime(ctx context.Context, socket string) diagnosis.Runtime {
	r := diagnosis.Runtime{Socket: socket, Conditions: map[string]bool{}}
	failed := func(err error) diagnosis.Runtime {
		r.Failure = FailureOf(err)
		return r
	}
	if _, err := os.Stat(socket); err != nil {
		return failed(err)
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		return failed(err)
	}
	defer conn.Close()
	var version, status []byte
	if err := conn.Invoke(ctx, "/runtime.v1.RuntimeService/Version", []byte{}, &version); err != nil {
		return failed(err)
	}
	if err := conn.Invoke(ctx, "/runtime.v1.RuntimeService/Status", []byte{}, &status); err != nil {
		return failed(err)
	}
	eachField(version, func(number protowire.Number, value []byte) {
		switch number {
		case 2: // VersionResponse.runtime_name
			r.Name = string(value)
		case 3: // VersionResponse.runtime_version
			r.Version = string(value)
		}
	})
	eachField(status, func(number protowire.Number, runtimeStatus []byte) {
		if number == 1 { // StatusResponse.status
			eachField(runtimeStatus, func(number protowire.Number, condition []byte) {
				if number == 1 { // RuntimeStatus.conditions
					addCondition(r.Conditions, condition)
				}
			})
		}
	})
	return r
}

func addCondition(conditions map[string]bool, condition []byte) {
	name, holds := "", false
	eachField(condition, func(number protowire.Number, value []byte) {
		switch number {
		case 1: // RuntimeCondition.type
			name = string(value)
		case 2: // RuntimeCondition.status
			holds = len(value) == 1 && value[0] == 1
		}
	})
	conditions[name] = holds
}

// eachField visits the fields of a message of Protocol Buffers up to the first malformed one. The
// value of a number is its encoding.
func eachField(message []byte, visit func(number protowire.Number, value []byte)) {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return
		}
		message = message[size:]
		length := protowire.ConsumeFieldValue(number, kind, message)
		if length < 0 {
			return
		}
		value := message[:length]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message)
		}
		visit(number, value)
		message = message[length:]
	}
}

// rawCodec passes messages as bytes.
type rawCodec struct{}

func (rawCodec) Marshal(message any) ([]byte, error) {
	data, ok := message.([]byte)
	if !ok {
		return nil, fmt.Errorf("message is %T, not bytes", message)
	}
	return data, nil
}

func (rawCodec) Unmarshal(data []byte, message any) error {
	target, ok := message.(*[]byte)
	if !ok {
		return fmt.Errorf("message is %T, not a pointer to bytes", message)
	}
	*target = append([]byte(nil), data...)
	return nil
}

func (rawCodec) Name() string { return "proto" }
