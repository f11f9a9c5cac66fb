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

// Config says which kube-apiserver to talk to, and how fast.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file, of which the current
	// context is used; empty means the service account of the pod.
	Kubeconfig string
	// QPS is how many requests per second a client may send in the long run;
	// 0 means the default.
	QPS float32
	// Burst is how many it may send at once; 0 means the default.
	Burst int
}

// DefaultConfig returns the defaults: the pod's service account, 200 requests
// per second, 400 at once.
func DefaultConfig() Config {
	return Config{QPS: defaultQPS, Burst: defaultBurst}
}

// RegisterFlags adds --kubeconfig, --kube-api-qps and --kube-api-burst.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig,
		"Path of a kubeconfig file; its current context is used. Empty: the service account of the pod.")
	fs.Float32Var(&c.QPS, "kube-api-qps", cmp.Or(c.QPS, defaultQPS),
		"Requests per second to the kube-apiserver in the long run.")
	fs.IntVar(&c.Burst, "kube-api-burst", cmp.Or(c.Burst, defaultBurst),
		"Requests to the kube-apiserver that may be sent at once.")
}

// Validate returns everything that is wrong with c. It reads the kubeconfig
// file, but contacts nobody.
func (c *Config) Validate() []error {
	var problems []error
	if _, err := load(c.Kubeconfig); err != nil {
		problems = append(problems, err)
	}
	if !(c.QPS >= 0) { // written so that NaN is refused, too
		problems = append(problems, fmt.Errorf("--kube-api-qps %v is not a rate; give requests per second, such as %d", c.QPS, defaultQPS))
	}
	if c.Burst < 0 {
		problems = append(problems, fmt.Errorf("--kube-api-burst %d is negative; give a number of requests, such as %d", c.Burst, defaultBurst))
	}
	return problems
}

// RESTConfig says how to reach the kube-apiserver of cfg: protobuf where the
// server has it and JSON elsewhere, and a user agent that names this build. It
// reads files and contacts nobody. Its errors name the file and what to do.
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
		return nil, errors.New("--kubeconfig is empty, which works only in a pod, and this is none " +
			"(KUBERNETES_SERVICE_HOST is not set): give the path of a kubeconfig file")
	case err != nil:
		return nil, fmt.Errorf("service account of this pod: %w; mount its token, or give --kubeconfig", err)
	}
	return config, nil
}

// fromFile reads the current context of one file. Unlike clientcmd's deferred
// loading it looks nowhere else, so that a mistake in the file cannot end in
// writing to another cluster.
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
	return clientcmd.NewDefaultClientConfig(*file, &clientcmd.ConfigOverrides{}).ClientConfig()
}

// warningsLimit bounds the texts remembered.
const warningsLimit = 100

// warnings logs each warning of the kube-apiserver once. Writing a deprecated
// kind such as Endpoints brings the same warning with every request.
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
		clear(w.seen) // texts that name objects would otherwise pile up
	}
	w.seen[text] = struct{}{}
	return true
}
