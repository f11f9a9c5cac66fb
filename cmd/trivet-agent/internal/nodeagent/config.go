package nodeagent

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/observe"
)

// Config has the settings of trivet-agent. Start from [DefaultConfig]; the zero value is invalid.
type Config struct {
	// NodeName is the name of the Node; empty: that of the client certificate.
	NodeName string
	// Kubeconfig is that of the kubelet: kube-apiservers, their authority and the client
	// certificate.
	Kubeconfig string
	// ClientCertFile and ClientKeyFile are the credential for leasesvc; empty: that of Kubeconfig.
	ClientCertFile, ClientKeyFile string
	// TokenFile has the credential for leasesvc in place of a certificate.
	TokenFile string
	Leasesvc  LeasesvcConfig
	Kubelet   KubeletConfig
	Endpoint  EndpointConfig
	// StateDir keeps what must survive a restart.
	StateDir string
	Admin    observe.AdminConfig
	// ReleaseOnStop ends the lease when the agent is stopped.
	ReleaseOnStop bool
	// Cluster is the cluster that the agent means; empty: any.
	Cluster string
	Log     observe.LogConfig
}

// LeasesvcConfig says how leasesvc is found.
type LeasesvcConfig struct {
	// Addresses are host:port; a DNS name stands for all its addresses. Without them, the
	// EndpointSlices of Service are read.
	Addresses []string
	// Service is "namespace/name".
	Service string
	// CAFile has the authorities of the servers.
	CAFile string
	// Insecure connects without TLS, to loopback only.
	Insecure bool
}

// KubeletConfig says how the kubelet is observed.
type KubeletConfig struct {
	// Healthz is the URL that the kubelet answers with 200.
	Healthz string
	// Interval is the time between two probes, and Timeout the longest time of one.
	Interval, Timeout time.Duration
}

// EndpointConfig configures the endpoint mode.
type EndpointConfig struct {
	// Listen is the address for the kubelet; empty: probe mode.
	Listen string
	// ClientCAFile has the authorities of the kubelet's certificate; empty: those of Kubeconfig.
	ClientCAFile string
	// DiscoverAPIServers adds the endpoints of default/kubernetes to the server of Kubeconfig.
	DiscoverAPIServers bool
}

// DefaultConfig returns the defaults. environ has the variable NODE_NAME.
func DefaultConfig(environ []string) Config {
	cfg := Config{
		Leasesvc: LeasesvcConfig{Service: "trivet-system/leasesvc"},
		Kubelet:  KubeletConfig{Healthz: "http://127.0.0.1:10248/healthz", Interval: 5 * time.Second, Timeout: 2 * time.Second},
		StateDir: "/var/lib/trivet-agent",
		Admin:    observe.AdminConfig{Listen: "127.0.0.1:7605"},
		Log:      observe.LogConfig{Level: "info", Format: "text"},
	}
	for _, entry := range environ {
		if name, found := strings.CutPrefix(entry, "NODE_NAME="); found {
			cfg.NodeName = name
		}
	}
	return cfg
}

// RegisterFlags adds the flags.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.NodeName, "node-name", c.NodeName,
		"Name of the Node (default: the variable NODE_NAME, then the node of the client certificate).")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig,
		"Kubeconfig of the kubelet, for example /etc/kubernetes/kubelet.conf: server and authority of kube-apiserver, and the client certificate of the node.")
	fs.StringVar(&c.ClientCertFile, "client-cert-file", c.ClientCertFile,
		"PEM file with the client certificate for leasesvc, followed when it is replaced (default: that of --kubeconfig).")
	fs.StringVar(&c.ClientKeyFile, "client-key-file", c.ClientKeyFile,
		"PEM file with the key of --client-cert-file; may be the same file.")
	fs.StringVar(&c.TokenFile, "token-file", c.TokenFile,
		"Projected token for leasesvc in place of a client certificate, with the audience of the servers; not with --kubelet-endpoint.")
	fs.StringSliceVar(&c.Leasesvc.Addresses, "leasesvc-address", nil,
		"Addresses of leasesvc, host:port; a DNS name stands for all its addresses (default: the EndpointSlices of --leasesvc-service).")
	fs.StringVar(&c.Leasesvc.Service, "leasesvc-service", c.Leasesvc.Service,
		"Service of leasesvc, namespace/name: its EndpointSlices are read from the kube-apiserver of --kubeconfig, and the servers' certificates must have its name.")
	fs.StringVar(&c.Leasesvc.CAFile, "leasesvc-ca-file", c.Leasesvc.CAFile,
		"PEM file with the authorities of leasesvc's certificates, followed when it is replaced.")
	fs.BoolVar(&c.Leasesvc.Insecure, "leasesvc-insecure", false,
		"Connect to leasesvc without TLS; only to addresses of --leasesvc-address that are on loopback.")
	fs.StringVar(&c.Kubelet.Healthz, "kubelet-healthz", c.Kubelet.Healthz,
		"URL on loopback that the kubelet answers with 200 while it is healthy.")
	fs.DurationVar(&c.Kubelet.Interval, "kubelet-probe-interval", c.Kubelet.Interval,
		"Time between two probes of --kubelet-healthz.")
	fs.DurationVar(&c.Kubelet.Timeout, "kubelet-probe-timeout", c.Kubelet.Timeout,
		"Longest time of one probe; a kubelet that takes longer is silent.")
	fs.StringVar(&c.Endpoint.Listen, "kubelet-endpoint", c.Endpoint.Listen,
		"Address on loopback where the kubelet reaches kube-apiserver through the agent, for example 127.0.0.1:7604; turns endpoint mode on.")
	fs.StringVar(&c.Endpoint.ClientCAFile, "endpoint-client-ca-file", c.Endpoint.ClientCAFile,
		"PEM file with the authorities of the kubelet's client certificate (default: the authority of --kubeconfig).")
	fs.BoolVar(&c.Endpoint.DiscoverAPIServers, "discover-apiservers", c.Endpoint.DiscoverAPIServers,
		"Use the endpoints of the Service default/kubernetes too, in endpoint mode.")
	fs.StringVar(&c.StateDir, "state-dir", c.StateDir,
		"Directory for the last known servers and, in endpoint mode, the authority of the endpoint.")
	fs.StringVar(&c.Admin.Listen, "admin-listen", c.Admin.Listen,
		"Address on loopback of the HTTP server with /livez, /readyz and /metrics, host:port.")
	fs.BoolVar(&c.Admin.Profiling, "profiling", false, "Serve profiles at /debug/pprof of --admin-listen.")
	fs.BoolVar(&c.ReleaseOnStop, "release-on-stop", c.ReleaseOnStop,
		"Delete the Lease of the node when the agent gets SIGTERM, because the node stops for good. Without it, the Lease outlives a restart of the agent.")
	fs.StringVar(&c.Cluster, "cluster", c.Cluster, "Name of the cluster; leasesvc of another cluster is refused (default: any).")
	c.Log.RegisterFlags(fs)
}

// Validate returns every problem, each naming its flag.
func (c *Config) Validate() []error {
	var problems []error
	report := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.NodeName != "" && len(validation.IsDNS1123Subdomain(c.NodeName)) > 0 {
		report("--node-name: %q is no name of a Node", c.NodeName)
	}
	if (c.ClientCertFile == "") != (c.ClientKeyFile == "") {
		report("--client-cert-file and --client-key-file are given together or not at all")
	}
	if c.TokenFile != "" && c.Endpoint.Listen != "" {
		report("--token-file: endpoint mode needs the certificate of the kubelet, not a token")
	}
	if c.TokenFile != "" && c.NodeName == "" {
		report("--node-name: needed with --token-file, because a token does not name its node here")
	}
	if c.TokenFile == "" && c.ClientCertFile == "" && c.Kubeconfig == "" && !c.Leasesvc.Insecure {
		report("--kubeconfig, --client-cert-file or --token-file: leasesvc needs to know the node")
	}
	if c.Leasesvc.Insecure && c.NodeName == "" {
		report("--node-name: needed with --leasesvc-insecure")
	}
	if c.Endpoint.Listen != "" && c.Kubeconfig == "" {
		report("--kubeconfig: needed with --kubelet-endpoint, because it says where kube-apiserver is")
	}
	if len(c.Leasesvc.Addresses) == 0 && c.Kubeconfig == "" {
		report("--leasesvc-address: needed without --kubeconfig, because no kube-apiserver can say where leasesvc is")
	}
	if c.StateDir == "" {
		report("--state-dir: a directory is needed")
	}
	for flag, address := range map[string]string{"--kubelet-endpoint": c.Endpoint.Listen, "--admin-listen": c.Admin.Listen} {
		if address == "" && flag == "--kubelet-endpoint" {
			continue
		}
		if err := checkLoopback(address); err != nil {
			report("%s: %w", flag, err)
		}
	}
	problems = append(problems, c.Leasesvc.validate()...)
	problems = append(problems, c.Kubelet.validate()...)
	return append(problems, c.Log.Validate()...)
}

func (c *LeasesvcConfig) validate() []error {
	var problems []error
	namespace, name, found := strings.Cut(c.Service, "/")
	if !found || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
		problems = append(problems, fmt.Errorf("--leasesvc-service: %q is not namespace/name", c.Service))
	}
	for _, address := range c.Addresses {
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" || port == "" {
			problems = append(problems, fmt.Errorf("--leasesvc-address: %q is not host:port", address))
		} else if c.Insecure {
			if err := checkLoopback(address); err != nil {
				problems = append(problems, fmt.Errorf("--leasesvc-insecure: --leasesvc-address %w", err))
			}
		}
	}
	switch {
	case c.Insecure && len(c.Addresses) == 0:
		problems = append(problems, errors.New("--leasesvc-insecure: needs --leasesvc-address"))
	case !c.Insecure && c.CAFile == "":
		problems = append(problems, errors.New("--leasesvc-ca-file: needed to know leasesvc's certificates"))
	}
	return problems
}

func (c *KubeletConfig) validate() []error {
	var problems []error
	target, err := url.Parse(c.Healthz)
	if err != nil || target.Scheme != "http" && target.Scheme != "https" {
		problems = append(problems, fmt.Errorf("--kubelet-healthz: %q is not an http or https URL", c.Healthz))
	} else if !identity.IsLoopback(target.Hostname()) {
		problems = append(problems, fmt.Errorf("--kubelet-healthz: %q is not on loopback; another machine's answer says nothing of this kubelet", c.Healthz))
	}
	if c.Interval < 100*time.Millisecond || c.Timeout <= 0 {
		problems = append(problems, fmt.Errorf("--kubelet-probe-interval %v must be at least 100ms and --kubelet-probe-timeout %v positive", c.Interval, c.Timeout))
	}
	return problems
}

func checkLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not host:port", address)
	}
	if !identity.IsLoopback(host) {
		return fmt.Errorf("%q is not on loopback", address)
	}
	return nil
}
