package kubeconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/internal/identity"
)

const (
	defaultQPS   = 200
	defaultBurst = 400
)

// Config configures clients of the kube-apiserver.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file, whose current context is used. If empty, the
	// service account of the Pod is used.
	Kubeconfig string
	// QPS limits the requests per second; 0 means the default.
	QPS float32
	// Burst limits the requests at once; 0 means the default.
	Burst int
}

// DefaultConfig returns the defaults: the pod's service account, 200 requests per second, 400 at
// once.
func DefaultConfig() Config {
	return Config{QPS: defaultQPS, Burst: defaultBurst}
}

// RegisterFlags adds --kubeconfig, --kube-api-qps and --kube-api-burst.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig,
		"Path of a kubeconfig file; its current context is used. Beyond loopback it must not skip TLS or its verification. Empty: the service account of the pod.")
	fs.Float32Var(&c.QPS, "kube-api-qps", cmp.Or(c.QPS, defaultQPS),
		"Requests per second to the kube-apiserver in the long run.")
	fs.IntVar(&c.Burst, "kube-api-burst", cmp.Or(c.Burst, defaultBurst),
		"Requests to the kube-apiserver that may be sent at once.")
}

// Validate returns all problems of c. It reads the kubeconfig file and contacts no server.
func (c *Config) Validate() []error {
	var problems []error
	if _, err := load(c.Kubeconfig); err != nil {
		problems = append(problems, err)
	}
	if !(c.QPS >= 0) { // also refuses NaN
		problems = append(problems, fmt.Errorf("--kube-api-qps %v is not a rate; give requests per second, such as %d", c.QPS, defaultQPS))
	}
	if c.Burst < 0 {
		problems = append(problems, fmt.Errorf("--kube-api-burst %d is negative; give a number of requests, such as %d", c.Burst, defaultBurst))
	}
	return problems
}

// RESTConfig returns the client configuration for the kube-apiserver of cfg: protobuf where the
// server supports it, else JSON, and a user agent with this build's version. It reads files and
// contacts no server. Its errors name the file and the remedy.
func RESTConfig(cfg Config) (*rest.Config, error) {
	config, err := load(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.UserAgent = "trivet/" + identity.Version()
	config.QPS = cmp.Or(cfg.QPS, defaultQPS)
	config.Burst = cmp.Or(cfg.Burst, defaultBurst)
	config.WarningHandlerWithContext = newWarnings()
	return config, nil
}

func load(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return inCluster()
	}
	config, err := fromFile(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}

func inCluster() (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	switch {
	case errors.Is(err, rest.ErrNotInCluster):
		return nil, errors.New("--kubeconfig is empty, which works only in a Pod, and this process is not in one " +
			"(KUBERNETES_SERVICE_HOST is not set): give the path of a kubeconfig file")
	case err != nil:
		return nil, fmt.Errorf("service account of this pod: %w; mount its token, or give --kubeconfig", err)
	}
	return config, nil
}

// fromFile reads the current context of one file. clientcmd's deferred loading would also look
// elsewhere, so a mistake in the file could end in writes to another cluster.
func fromFile(path string) (*rest.Config, error) {
	file, err := clientcmd.LoadFromFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, errors.New("no such file")
	case err != nil:
		return nil, fmt.Errorf("not readable as a kubeconfig: %w", err)
	}
	if _, ok := file.Contexts[file.CurrentContext]; !ok {
		return nil, fmt.Errorf("its current context %q does not exist; choose one with `kubectl config use-context` (known: %s)",
			file.CurrentContext, strings.Join(slices.Sorted(maps.Keys(file.Contexts)), ", "))
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, fmt.Errorf("resolve paths of certificates: %w", err)
	}
	config, err := clientcmd.NewDefaultClientConfig(*file, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	return config, checkServer(config)
}

// checkServer returns an error if another program than kube-apiserver could answer: beyond
// loopback, its certificate is verified.
func checkServer(config *rest.Config) error {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	host := server.Hostname()
	switch {
	case identity.IsLoopback(host):
		return nil
	case server.Scheme != "https":
		return fmt.Errorf("server %s has no TLS, which is for loopback only: any machine on the way could act as kube-apiserver; use https", server.Redacted())
	case config.Insecure:
		return fmt.Errorf("insecure-skip-tls-verify lets any machine on the way to %s act as kube-apiserver; give certificate-authority, and tls-server-name if the certificate has another name", server.Redacted())
	}
	return nil
}

// warningsLimit bounds the remembered texts.
const warningsLimit = 100

// warnings logs each warning of the kube-apiserver once. Each write of a deprecated kind such as
// Endpoints returns the same warning.
type warnings struct {
	mu   sync.Mutex // guards seen
	seen map[string]struct{}
}

var _ rest.WarningHandlerWithContext = (*warnings)(nil)

func newWarnings() *warnings { return &warnings{seen: map[string]struct{}{}} }

// HandleWarningHeaderWithContext logs text unless it was logged before.
func (w *warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, agent, text string) {
	if w.isNew(text) {
		rest.WarningLogger{}.HandleWarningHeaderWithContext(ctx, code, agent, text)
	}
}

func (w *warnings) isNew(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.seen[text]; known {
		return false
	}
	if len(w.seen) >= warningsLimit {
		clear(w.seen) // texts with object names would accumulate
	}
	w.seen[text] = struct{}{}
	return true
}
