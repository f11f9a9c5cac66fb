package debugbundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/kubeaccess"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/observe/loglevel"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

const (
	// maxPart bounds one file.
	maxPart = 8 << 20
	// maxReplicas bounds the replicas whose admin servers are asked. More are in status.json.
	maxReplicas = 32
	// concurrentReplicas bounds the replicas that are asked at the same time.
	concurrentReplicas = 8
	// graceTime is how long a source may take to notice that its time is over.
	graceTime = 500 * time.Millisecond
)

// commands are the commands of trivet whose answers are in the archive, by file.
var commands = map[string][]string{
	"status.json":     {"status", "-o", "json"},
	"version.json":    {"version", "-o", "json"},
	"check.json":      {"check", "-o", "json"},
	"shards.json":     {"shards", "-o", "json"},
	"nodes.json":      {"nodes", "-o", "json"},
	"zones.json":      {"zones", "-o", "json"},
	"slices.json":     {"slices", "-o", "json"},
	"apiservers.json": {"apiservers", "-o", "json"},
	"findings.json":   {"findings", "-o", "json"},
	"repairs.json":    {"repair", "list", "-o", "json"},
}

// source is where one file, or several ones, come from. paths are the files that are missing
// without an answer.
type source struct {
	paths []string
	read  func(ctx context.Context) []part
}

// collect asks all sources at once, and returns what has arrived when all have ended or the time is
// over.
func (c *bundleCommand) collect(ctx context.Context) []part {
	ctx, cancel := context.WithTimeout(ctx, c.timeLimit)
	defer cancel()
	sources := append(c.commandSources(), c.kubernetesSources()...)
	sources = append(sources, source{paths: []string{"replicas/"}, read: c.readReplicas})
	type answer struct {
		source int
		parts  []part
	}
	answers := make(chan answer, len(sources)) // every source can send and end
	for i, from := range sources {
		go func() { answers <- answer{i, from.read(ctx)} }()
	}
	var all []part
	answered := make([]bool, len(sources))
	over, grace := ctx.Done(), make(<-chan time.Time)
	for waiting := len(sources); waiting > 0; {
		select {
		case a := <-answers:
			waiting--
			all, answered[a.source] = append(all, a.parts...), true
		case <-over:
			over, grace = nil, time.After(graceTime)
		case <-grace:
			waiting = 0
		}
	}
	for i, ended := range answered {
		if ended {
			continue
		}
		for _, path := range sources[i].paths {
			all = append(all, part{path: path, err: fmt.Errorf("no answer within %s", c.timeLimit)})
		}
	}
	return all
}

// commandSources run other commands of trivet, with the flags of this one.
func (c *bundleCommand) commandSources() []source {
	var sources []source
	for path, line := range commands {
		sources = append(sources, source{paths: []string{path}, read: func(ctx context.Context) []part {
			return []part{c.runCommand(ctx, path, line)}
		}})
	}
	return sources
}

// runCommand keeps what a command prints, also if its exit code says that something is wrong.
func (c *bundleCommand) runCommand(ctx context.Context, path string, line []string) part {
	out, reports := &limited{limit: maxPart}, &limited{limit: maxPart}
	ctx, cancel := context.WithTimeout(ctx, 2*c.timeout) // the command has its own
	defer cancel()
	root := c.root(printer.Streams{Out: out, Err: reports, In: strings.NewReader(""), Env: c.streams.Env})
	root.SetArgs(slices.Concat(line, c.given, []string{"--timeout=" + c.timeout.String(), "--color=never"}))
	err := root.ExecuteContext(ctx)
	if out.Len() > 0 {
		err = nil
	} else if err == nil {
		err = errors.New("the command printed nothing")
	}
	return part{path: path, body: out.Bytes(), cut: out.cut, err: err}
}

// gatewayFlags returns the flags that say which gateway is asked, and with which identity.
func gatewayFlags(command *cobra.Command, streams printer.Streams) []string {
	var known pflag.FlagSet
	new(client.Gateway).RegisterFlags(&known, streams.Env)
	var given []string
	command.Flags().Visit(func(flag *pflag.Flag) {
		if known.Lookup(flag.Name) != nil {
			given = append(given, "--"+flag.Name+"="+flag.Value.String())
		}
	})
	return given
}

// kubernetesPaths are the lists of Trivet's namespace. Secrets and ConfigMaps are not among them.
var kubernetesPaths = map[string]string{
	"deployments":          "/apis/apps/v1/namespaces/%s/deployments",
	"statefulsets":         "/apis/apps/v1/namespaces/%s/statefulsets",
	"daemonsets":           "/apis/apps/v1/namespaces/%s/daemonsets",
	"jobs":                 "/apis/batch/v1/namespaces/%s/jobs",
	"pods":                 "/api/v1/namespaces/%s/pods",
	"services":             "/api/v1/namespaces/%s/services",
	"events":               "/api/v1/namespaces/%s/events",
	"poddisruptionbudgets": "/apis/policy/v1/namespaces/%s/poddisruptionbudgets",
	"networkpolicies":      "/apis/networking.k8s.io/v1/namespaces/%s/networkpolicies",
}

func (c *bundleCommand) kubernetesSources() []source {
	toKube, err := c.kubernetes()
	var sources []source
	for kind, path := range kubernetesPaths {
		name := "kubernetes/" + kind + ".json"
		sources = append(sources, source{paths: []string{name}, read: func(ctx context.Context) []part {
			if err != nil {
				return []part{{path: name, err: err}}
			}
			return []part{c.readObjects(ctx, toKube, name, fmt.Sprintf(path, c.gateway.Namespace))}
		}})
	}
	return sources
}

// kubernetes returns a client of kube-apiserver. A kubeconfig of the environment may be that of
// another cluster than --server.
func (c *bundleCommand) kubernetes() (rest.Interface, error) {
	if c.gateway.Server != "" && c.gateway.Kubeconfig == "" && c.gateway.Context == "" {
		return nil, errors.New("no kubeconfig was chosen beside --server: give --kubeconfig or --context of the same cluster")
	}
	access, err := kubeaccess.Load(kubeaccess.Config{Kubeconfig: c.gateway.Kubeconfig, Context: c.gateway.Context, Env: c.streams.Env})
	if err != nil {
		return nil, err
	}
	return access.Kube.Discovery().RESTClient(), nil
}

func (c *bundleCommand) readObjects(ctx context.Context, from rest.Interface, name, path string) part {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	stream, err := from.Get().AbsPath(path).Param("limit", "1000").SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		return part{path: name, err: err}
	}
	defer stream.Close()
	body, err := io.ReadAll(io.LimitReader(stream, maxPart+1))
	if err == nil && len(body) > maxPart {
		err = fmt.Errorf("the list has more than %d bytes, so its secrets cannot be found", maxPart)
	}
	if err == nil {
		body, err = objects(body)
	}
	return part{path: name, body: body, err: err}
}

// questions are the paths of an admin server whose answers are in the archive, the most telling
// first.
var questions = []struct {
	file, path string
	binary     bool
}{
	{file: "readyz.txt", path: "/readyz?verbose"},
	{file: "loops.json", path: "/loops"},
	{file: "flags.json", path: "/flags"},
	{file: "log-level.json", path: loglevel.Path},
	{file: "metrics.txt", path: "/metrics"},
	{file: "goroutines.txt", path: "/debug/pprof/goroutine?debug=1"},
	{file: "heap.pb.gz", path: "/debug/pprof/heap", binary: true},
}

// readReplicas asks the admin servers of all replicas.
func (c *bundleCommand) readReplicas(ctx context.Context) []part {
	admin, replicas, err := c.replicas(ctx)
	if err != nil {
		return []part{{path: "replicas/", err: err}}
	}
	var all []part
	if len(replicas) > maxReplicas {
		all = append(all, part{path: "replicas/", err: fmt.Errorf("%d replicas are not asked, because there are more than %d", len(replicas)-maxReplicas, maxReplicas)})
		replicas = replicas[:maxReplicas]
	}
	var mu sync.Mutex // guards all
	var asking sync.WaitGroup
	slots := make(chan struct{}, concurrentReplicas)
	for _, replica := range replicas {
		asking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			parts := c.askReplica(ctx, admin.Client(replica), fmt.Sprintf("replicas/%s/%s/", fileName(replica.Service), fileName(replica.Name)))
			mu.Lock()
			defer mu.Unlock()
			all = append(all, parts...)
		})
	}
	asking.Wait()
	return all
}

func (c *bundleCommand) replicas(ctx context.Context) (*client.Admin, []client.Replica, error) {
	admin, err := c.gateway.Admin()
	if err != nil {
		return nil, nil, err
	}
	replicas, err := listReplicas(ctx, &c.gateway, admin, c.timeout)
	return admin, replicas, err
}

// listReplicas asks the gateway only if it is what knows the replicas.
func listReplicas(ctx context.Context, gateway *client.Gateway, admin *client.Admin, timeout time.Duration) ([]client.Replica, error) {
	var status *gatewayv1.ClusterStatus
	if gateway.Server != "" {
		flags := client.Flags{Gateway: *gateway, Timeout: timeout}
		response, err := client.Call(ctx, &flags, "replicas", func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.GetClusterStatusResponse, error) {
			return gatewayv1.NewClusterServiceClient(conn).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
		})
		if err != nil {
			return nil, err
		}
		status = response.GetStatus()
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return admin.Replicas(ctx, status)
}

// askReplica asks one question after the other. A replica that does not answer one is not asked
// again.
func (c *bundleCommand) askReplica(ctx context.Context, to *http.Client, folder string) []part {
	defer to.CloseIdleConnections()
	var parts []part
	var silent error
	for _, question := range questions {
		p := part{path: folder + question.file, binary: question.binary, err: silent}
		if silent == nil {
			asked, cancel := context.WithTimeout(ctx, c.timeout)
			p.body, p.cut, p.err = client.Ask(asked, to, http.MethodGet, question.path, maxPart)
			if errors.Is(p.err, client.ErrFailed) && len(p.body) > 0 && !p.binary {
				p.err = nil // a replica that is not ready says why
			}
			if errors.Is(p.err, client.ErrNoPath) {
				p.err = fmt.Errorf("the server has no %s; profiles need --profiling, the others a newer server", question.path)
			}
			if asked.Err() != nil {
				silent = fmt.Errorf("not asked, because the replica did not answer %s within %s", question.path, c.timeout)
			}
			cancel()
		}
		if p.binary && p.cut {
			p.err = fmt.Errorf("the profile has more than %d bytes", maxPart)
		}
		parts = append(parts, p)
	}
	return parts
}

// fileName returns a name that servers chose as part of a path.
func fileName(name string) string {
	safe := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '_'
	}, name)
	if safe = strings.TrimLeft(safe, "."); safe == "" {
		return "unnamed"
	}
	return safe[:min(len(safe), 100)]
}
