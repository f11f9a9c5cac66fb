package process

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/httpaccess"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/tracing"
)

// Config has the settings of every Trivet server. Start from [DefaultConfig]; the zero value is
// invalid.
type Config struct {
	// Cluster is the name of the Kubernetes cluster. It separates keys in a shared etcd.
	Cluster string
	// AdvertiseAddress is the host or host:port under which other replicas reach the gRPC server.
	// If empty, it is derived from the listener.
	AdvertiseAddress string
	// Loops selects the loops to run, in the syntax of kube-controller-manager's --controllers.
	Loops []string
	// DryRun selects the loops that plan and write nothing.
	DryRun shadow.Config
	RPC    rpcserver.Config
	Admin  observe.AdminConfig
	Log    observe.LogConfig
	// Runtime has what the admin server shows and changes. Main sets it; the zero value has
	// nothing.
	Runtime Runtime
	// Tracing has no endpoint by default.
	Tracing tracing.Config
	Etcd    etcdconn.Config
	Kube    kubeconn.Config
	Audit   audit.Config
	// Limits are the limits of each caller. No flag sets them.
	Limits quota.Table
}

// Runtime is what the admin server shows of a running process, and may change.
type Runtime struct {
	// LogLevel is that of the process's logger.
	LogLevel *observe.LogLevel
	// Flags are the values of all flags, without secrets.
	Flags map[string]string
}

// DefaultConfig returns the defaults of a program.
func DefaultConfig(program Program) Config {
	return Config{
		Cluster: "default",
		Loops:   []string{"*"},
		DryRun:  shadow.DefaultConfig(program.DryRuns...),
		RPC:     rpcserver.DefaultConfig(loopback(program.GRPCPort)),
		Admin:   observe.AdminConfig{Listen: loopback(program.AdminPort)},
		Log:     observe.LogConfig{Level: "info", Format: "text"},
		Etcd:    etcdconn.DefaultConfig(),
		Kube:    kubeDefaults(program),
		Audit:   audit.DefaultConfig(),
		Limits:  quota.Methods(),
		Tracing: tracing.DefaultConfig(),
	}
}

func kubeDefaults(program Program) kubeconn.Config {
	cfg := kubeconn.DefaultConfig()
	cfg.QPS = cmp.Or(program.KubeQPS, cfg.QPS)
	cfg.Burst = cmp.Or(program.KubeBurst, cfg.Burst)
	return cfg
}

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(port))
}

// RegisterFlags adds the flags of every server.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Cluster, "cluster", c.Cluster,
		"name of the Kubernetes cluster; separates the keys of several clusters in one etcd")
	fs.StringVar(&c.AdvertiseAddress, "advertise-address", c.AdvertiseAddress,
		"host or host:port under which other replicas reach this gRPC server (default: where it listens)")
	fs.StringSliceVar(&c.Loops, "loops", c.Loops,
		"loops to run: '*' all that are on by default, 'name' this one, '-name' not this one; see /loops for the names")
	c.DryRun.RegisterFlags(fs)
	c.RPC.RegisterFlags(fs)
	c.Admin.RegisterFlags(fs)
	c.Log.RegisterFlags(fs)
	c.Etcd.RegisterFlags(fs)
	c.Kube.RegisterFlags(fs)
	c.Audit.RegisterFlags(fs)
	c.Tracing.RegisterFlags(fs)
}

var clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// Validate returns every problem of the configuration, each naming its flag.
func (c *Config) Validate(program Program) []error {
	var problems []error
	if !clusterName.MatchString(c.Cluster) {
		problems = append(problems, fmt.Errorf(
			"--cluster: %q is not a name of at most 63 lower-case letters, digits, '-' and '.'", c.Cluster))
	}
	if err := checkAdvertise(c.AdvertiseAddress); err != nil {
		problems = append(problems, err)
	}
	if _, err := loop.ParseSelection(program.Loops, c.Loops); err != nil {
		problems = append(problems, err)
	}
	problems = append(problems, c.DryRun.Validate(c.Loops)...)
	problems = append(problems, c.RPC.Validate()...)
	problems = append(problems, c.Admin.Validate()...)
	var http *httpaccess.Access // nil with --insecure
	if !c.RPC.Insecure {
		http = httpaccess.New(httpaccess.Config{AlwaysAllow: c.alwaysAllows()})
	}
	if err := http.Check("--admin-listen", c.Admin.Listen); err != nil {
		problems = append(problems, err)
	}
	problems = append(problems, c.Log.Validate()...)
	problems = append(problems, c.Etcd.Validate()...)
	problems = append(problems, c.Audit.Validate()...)
	problems = append(problems, c.Tracing.Validate()...)
	if program.Kube || c.reviews() {
		problems = append(problems, c.Kube.Validate()...)
	}
	return problems
}

func (c *Config) alwaysAllows() bool { return c.RPC.Access.Mode == rpcserver.AlwaysAllowMode }

func checkAdvertise(address string) error {
	if address == "" {
		return nil
	}
	host := address
	if h, _, err := net.SplitHostPort(address); err == nil {
		host = h
	}
	if ip := net.ParseIP(strings.Trim(host, "[]")); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("--advertise-address: %q is not an address to which other replicas can connect", address)
	}
	if host == "" {
		return errors.New("--advertise-address: the host is missing")
	}
	return nil
}

// advertised completes the advertised address from the address of the listener.
func advertised(flag string, listener net.Addr) (string, error) {
	_, port, err := net.SplitHostPort(listener.String())
	if err != nil {
		return listener.String(), nil // an in-memory listener has no port
	}
	if flag != "" {
		if _, _, err := net.SplitHostPort(flag); err == nil {
			return flag, nil
		}
		return net.JoinHostPort(strings.Trim(flag, "[]"), port), nil
	}
	host, _, _ := net.SplitHostPort(listener.String())
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return listener.String(), nil
	}
	return "", fmt.Errorf("--listen %s accepts on every address, so the address of this replica is unknown: "+
		"give --advertise-address (in a pod: the pod's IP)", listener)
}

// advertisedBeside returns the address of a second listener of the process: its own host, or, if it
// accepts on every address, the host that is advertised for the first listener.
func advertisedBeside(advertised string, listener net.Addr) string {
	host, port, err := net.SplitHostPort(listener.String())
	if err != nil {
		return listener.String()
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return listener.String()
	}
	if host, _, err = net.SplitHostPort(advertised); err != nil {
		return listener.String()
	}
	return net.JoinHostPort(host, port)
}
