package check

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/clusterstate"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// sources are the connections from which facts come.
type sources struct {
	// kube is nil if there is none; kubeErr then says why.
	kube    *clusterstate.Kube
	kubeErr error
	// gateway is nil before an install.
	gateway *grpc.ClientConn
}

func (s *sources) close() {
	if s.kube != nil {
		s.kube.Close()
	}
	if s.gateway != nil {
		_ = s.gateway.Close()
	}
}

// facts are what several checks of one round use.
type facts struct {
	manager *shared[diagnosis.Manager]
	// upstream is about upstream's side of each duty.
	upstream map[diagnosis.Duty]*shared[diagnosis.Observation]
	status   *shared[clusterstate.Status]
	leases   *shared[clusterstate.Leases]
	// installation is from status; its error is short, because the check gateway has the cause.
	installation func(ctx context.Context) (diagnosis.Installation, error)
}

func (c *command) facts(from *sources) *facts {
	f := &facts{upstream: map[diagnosis.Duty]*shared[diagnosis.Observation]{}}
	f.manager = newShared(withKube(from, func(ctx context.Context, kube *clusterstate.Kube) (diagnosis.Manager, error) {
		return kube.Manager(ctx)
	}))
	for _, duty := range diagnosis.Duties() {
		f.upstream[duty] = newShared(withKube(from, func(ctx context.Context, kube *clusterstate.Kube) (diagnosis.Observation, error) {
			manager, err := f.manager.get(ctx)
			if err != nil {
				return diagnosis.Observation{}, err
			}
			return kube.UpstreamOf(ctx, duty, manager)
		}))
	}
	f.upstream[diagnosis.Endpoints] = newShared(withKube(from, func(ctx context.Context, kube *clusterstate.Kube) (diagnosis.Observation, error) {
		found, err := kube.EndpointFacts(ctx)
		if err != nil {
			return diagnosis.Observation{}, err
		}
		if c.hasEtcd() {
			if found.Keys, found.KeysRead, err = kube.MasterLeases(ctx, c.etcd); err != nil {
				return diagnosis.Observation{}, err
			}
		}
		if !found.KeysRead && from.gateway != nil {
			found.Keys, _ = clusterstate.AdoptedKeys(ctx, from.gateway) // only further evidence
		}
		return diagnosis.UpstreamEndpoints(found, time.Now()), nil
	}))
	f.status = newShared(func(ctx context.Context) (clusterstate.Status, error) {
		return clusterstate.GatewayStatus(ctx, from.gateway)
	})
	f.installation = func(ctx context.Context) (diagnosis.Installation, error) {
		status, err := f.status.get(ctx)
		if err != nil {
			return diagnosis.Installation{}, errors.New("the gateway gave no status")
		}
		return status.Installation, nil
	}
	f.leases = newShared(func(ctx context.Context) (clusterstate.Leases, error) {
		return clusterstate.NodeLeases(ctx, from.gateway)
	})
	return f
}

func withKube[T any](from *sources, read func(context.Context, *clusterstate.Kube) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (T, error) {
		if from.kube == nil {
			var none T
			return none, from.kubeErr
		}
		return read(ctx, from.kube)
	}
}

// tasks returns the tasks of one round, by the IDs of their checks.
func (c *command) tasks(from *sources) map[string]task {
	f := c.facts(from)
	if c.pre {
		tasks := c.preTasks(from, f)
		c.addMachine(tasks)
		return tasks
	}
	return c.afterTasks(from, f)
}

func decided[T any](read func(context.Context) (T, error), decide func(T) diagnosis.Result) task {
	return func(ctx context.Context) (diagnosis.Result, error) {
		fact, err := read(ctx)
		if err != nil {
			return diagnosis.Result{}, err
		}
		return decide(fact), nil
	}
}

func kubeTask[T any](from *sources, read func(context.Context, *clusterstate.Kube) (T, error), decide func(T) diagnosis.Result) task {
	return decided(withKube(from, read), decide)
}

func skipped(why string) task {
	return func(context.Context) (diagnosis.Result, error) {
		return diagnosis.Result{State: diagnosis.Skipped, Found: why}, nil
	}
}

func (c *command) preTasks(from *sources, f *facts) map[string]task {
	tasks := map[string]task{
		"pre-kube-version": kubeTask(from, func(ctx context.Context, k *clusterstate.Kube) (diagnosis.Version, error) { return k.Version(ctx) }, diagnosis.KubernetesVersion),
		"pre-kube-apis":    kubeTask(from, func(ctx context.Context, k *clusterstate.Kube) ([]diagnosis.API, error) { return k.APIs(ctx) }, diagnosis.APIs),
		"pre-rights": kubeTask(from, func(ctx context.Context, k *clusterstate.Kube) ([]diagnosis.Right, error) {
			return k.OwnRights(ctx, clusterstate.InstallRights(c.Gateway.Namespace)), nil
		}, diagnosis.InstallRights),
		"pre-pods": kubeTask(from, func(ctx context.Context, k *clusterstate.Kube) (diagnosis.PodAdmissions, error) {
			return k.PodAdmissions(ctx, deploy.Files(), c.Gateway.Namespace)
		}, diagnosis.Pods),
		"pre-clock": kubeTask(from, func(ctx context.Context, k *clusterstate.Kube) (diagnosis.Clock, error) { return k.Clock(ctx) },
			func(clock diagnosis.Clock) diagnosis.Result { return diagnosis.Clocks([]diagnosis.Clock{clock}) }),
		"pre-upstream-manager": decided(f.manager.get, func(m diagnosis.Manager) diagnosis.Result { return diagnosis.ManagerActivity(m, time.Now()) }),
	}
	for _, duty := range diagnosis.Duties() {
		tasks["pre-upstream-"+string(duty)] = decided(f.upstream[duty].get, diagnosis.UpstreamBefore)
	}
	c.addEtcd(tasks)
	return tasks
}

func (c *command) addEtcd(tasks map[string]task) {
	if !c.hasEtcd() {
		for _, id := range []string{"pre-etcd-members", "pre-etcd-transactions", "pre-etcd-certificates"} {
			tasks[id] = skipped("--etcd-endpoints is not given.")
		}
		return
	}
	tasks["pre-etcd-members"] = decided(func(ctx context.Context) ([]diagnosis.EtcdMember, error) {
		return clusterstate.EtcdMembers(ctx, c.etcd)
	}, diagnosis.EtcdMembers)
	tasks["pre-etcd-transactions"] = decided(func(ctx context.Context) (diagnosis.EtcdTransaction, error) {
		return clusterstate.EtcdTransaction(ctx, c.etcd, c.cluster)
	}, diagnosis.EtcdTransactions)
	tasks["pre-etcd-certificates"] = func(context.Context) (diagnosis.Result, error) {
		found := slices.Concat(clusterstate.FileAuthorities(c.etcd.CAFile), clusterstate.FileCertificates(c.etcd.CertFile))
		return diagnosis.Certificates(found, time.Now()), nil
	}
}

func (c *command) addMachine(tasks map[string]task) {
	if !c.onNode() {
		for _, id := range []string{"pre-ports", "pre-kubelet", "pre-kubelet-kubeconfig", "pre-cri"} {
			tasks[id] = skipped("This machine is not a node; --node=yes checks it.")
		}
		return
	}
	tasks["pre-ports"] = func(ctx context.Context) (diagnosis.Result, error) {
		return diagnosis.Ports(clusterstate.Ports(ctx, ports())), nil
	}
	tasks["pre-kubelet"] = func(ctx context.Context) (diagnosis.Result, error) {
		return diagnosis.KubeletHealth(clusterstate.Healthz(ctx, c.machine.healthz)), nil
	}
	tasks["pre-kubelet-kubeconfig"] = func(context.Context) (diagnosis.Result, error) {
		return diagnosis.KubeletKubeconfig(clusterstate.KubeletIdentity(c.machine.kubeletKubeconfig), time.Now()), nil
	}
	tasks["pre-cri"] = func(ctx context.Context) (diagnosis.Result, error) {
		return diagnosis.ContainerRuntime(clusterstate.Runtime(ctx, c.machine.socket)), nil
	}
}

// ports returns the ports of static Pods and of the agent.
func ports() map[string][]string {
	return map[string][]string{
		"gateway": {":7600", ":7610", ":7680"}, "leasesvc": {":7601", ":7611"}, "bootstrapsvc": {":7602", ":7612"},
		"slicesvc": {":7603", ":7613"}, "trivet-agent": {"127.0.0.1:7604", "127.0.0.1:7605"},
	}
}

func (c *command) afterTasks(from *sources, f *facts) map[string]task {
	onInstallation := func(decide func(diagnosis.Installation) diagnosis.Result) task {
		return decided(f.installation, decide)
	}
	tasks := map[string]task{
		"gateway":  func(ctx context.Context) (diagnosis.Result, error) { return c.gateway(ctx, f) },
		"replicas": onInstallation(diagnosis.Replicas),
		"workloads": kubeTask(from, func(ctx context.Context, k *clusterstate.Kube) (workloads, error) {
			found, err := k.Workloads(ctx, c.Gateway.Namespace)
			installation, _ := f.installation(ctx) // without an answer of the gateway, the Pods count
			return workloads{found, installation}, err
		}, func(w workloads) diagnosis.Result { return diagnosis.Workloads(w.found, w.installation) }),
		"versions": onInstallation(func(i diagnosis.Installation) diagnosis.Result { return diagnosis.Versions(i, identity.Version()) }),
		"shards":   onInstallation(diagnosis.Shards), "loops": onInstallation(diagnosis.Loops),
		"dependencies": onInstallation(diagnosis.Dependencies), "verdict": onInstallation(diagnosis.Verdict),
		"lag":          func(ctx context.Context) (diagnosis.Result, error) { return lag(ctx, from, f) },
		"clocks":       func(ctx context.Context) (diagnosis.Result, error) { return clocks(ctx, from, f) },
		"certificates": func(ctx context.Context) (diagnosis.Result, error) { return c.certificates(ctx, from, f) },
		"placement": kubeTask(from, func(ctx context.Context, k *clusterstate.Kube) (diagnosis.Placement, error) {
			return k.KeyPlacement(ctx, c.Gateway.Namespace)
		}, diagnosis.KeyPlacement),
		"etcd-rights": skipped("--etcd-endpoints is not given."),
		"agents":      func(ctx context.Context) (diagnosis.Result, error) { return agents(ctx, from, f) },
	}
	if c.hasEtcd() {
		tasks["etcd-rights"] = decided(func(ctx context.Context) (diagnosis.EtcdAccess, error) { return clusterstate.EtcdAccess(ctx, c.etcd) }, diagnosis.EtcdRights)
	}
	for _, server := range certs.Servers() {
		tasks["rights-"+server] = func(ctx context.Context) (diagnosis.Result, error) { return c.serverRights(ctx, from, f, server) }
	}
	for _, duty := range diagnosis.Duties() {
		tasks["writers-"+string(duty)] = func(ctx context.Context) (diagnosis.Result, error) {
			installation, err := f.installation(ctx)
			if err != nil {
				return diagnosis.Result{}, err
			}
			upstream, err := f.upstream[duty].get(ctx)
			return diagnosis.Writers(duty, installation, upstream, time.Now()), err
		}
	}
	return tasks
}

// certificates judges those of the Secrets and that of the gateway. The Secrets have private keys,
// which a person on call needs no right to read.
func (c *command) certificates(ctx context.Context, from *sources, f *facts) (diagnosis.Result, error) {
	if from.kube == nil {
		return diagnosis.Result{}, from.kubeErr
	}
	found, err := from.kube.SecretCertificates(ctx, c.Gateway.Namespace)
	status, _ := f.status.get(ctx) // the Secrets count without the gateway, too
	unread := apierrors.IsForbidden(err) && len(status.Certificates) > 0
	if err != nil && !unread {
		return diagnosis.Result{}, err
	}
	result := diagnosis.Certificates(append(found, status.Certificates...), time.Now())
	if unread {
		result.Found += " You may not read the Secrets of " + c.Gateway.Namespace + ", so this is not known of the others."
	}
	return result, nil
}

// workloads are what the check of the same name compares.
type workloads struct {
	found        []diagnosis.Workload
	installation diagnosis.Installation
}

// gateway judges the call to the gateway. An error with a remedy is an answer of kube-apiserver or
// of the gateway.
func (c *command) gateway(ctx context.Context, f *facts) (diagnosis.Result, error) {
	_, err := f.status.get(ctx)
	if err == nil {
		return diagnosis.Gateway(c.Gateway.Where(), diagnosis.Failure{}), nil
	}
	failure, hint := clusterstate.FailureOf(err), ""
	if answer, ok := errors.AsType[*exit.Error](c.NoAnswer(ctx, "status", err)); ok && answer.Err != nil {
		failure = clusterstate.FailureOf(answer.Err)
		hint = answer.Try
		if cause, ok := errors.AsType[*exit.Error](answer.Err); ok {
			failure.Answered = failure.Answered || cause.Try != ""
		}
	}
	reason := rpcerror.ReasonOf(err)
	failure.Answered = failure.Answered || reason != "" && reason != "UNAVAILABLE"
	result := diagnosis.Gateway(c.Gateway.Where(), failure)
	result.Hint = hint
	return result, nil
}

func lag(ctx context.Context, from *sources, f *facts) (diagnosis.Result, error) {
	leases, leasesErr := f.leases.get(ctx)
	lags, slicesErr := clusterstate.SliceLags(ctx, from.gateway)
	if leasesErr != nil && slicesErr != nil {
		return diagnosis.Result{}, errors.Join(leasesErr, slicesErr)
	}
	result := diagnosis.Lags(append(lags, leases.Lags...))
	if err := errors.Join(leasesErr, slicesErr); err != nil && result.State != diagnosis.Failed {
		return diagnosis.Result{}, err
	}
	return result, nil
}

func clocks(ctx context.Context, from *sources, f *facts) (diagnosis.Result, error) {
	if _, err := f.installation(ctx); err != nil {
		return diagnosis.Result{}, err
	}
	status, err := f.status.get(ctx)
	found := slices.Clone(status.Clocks)
	if from.kube != nil {
		clock, err := from.kube.Clock(ctx)
		if err != nil {
			return diagnosis.Result{}, err
		}
		found = append(found, clock)
	}
	return diagnosis.Clocks(found), err
}

func agents(ctx context.Context, from *sources, f *facts) (diagnosis.Result, error) {
	if from.kube == nil {
		return diagnosis.Result{}, from.kubeErr
	}
	nodes, err := from.kube.Nodes(ctx)
	if err != nil {
		return diagnosis.Result{}, err
	}
	leases, err := f.leases.get(ctx)
	return diagnosis.AgentCoverage(diagnosis.Coverage{Nodes: nodes, Agents: leases.Agents, Missing: leases.Missing}), err
}

// serverRights reviews the rights of both identities that deploy/ gives a server.
func (c *command) serverRights(ctx context.Context, from *sources, f *facts, server string) (diagnosis.Result, error) {
	if from.kube == nil {
		return diagnosis.Result{}, from.kubeErr
	}
	installation, err := f.installation(ctx)
	if err != nil {
		return diagnosis.Result{}, err
	}
	rights, err := clusterstate.ServerRights(deploy.Files(), server, append([]string{"base"}, components(installation, server)...)...)
	if err != nil {
		return diagnosis.Result{}, err
	}
	var identities []diagnosis.Identity
	account, groups := roles.User(server)
	for _, user := range []string{account, "trivet:" + server} {
		identities = append(identities, diagnosis.Identity{User: user, Rights: from.kube.RightsOf(ctx, user, groups, rights)})
		groups = nil // only a ServiceAccount has them
	}
	running := len(installation.Service(server).Replicas) > 0
	return diagnosis.ServerRights(server, running, identities), nil
}

// components returns the folders of deploy/ with the roles of the loops that are on.
func components(i diagnosis.Installation, server string) []string {
	var folders []string
	for _, r := range i.Service(server).Replicas {
		for _, l := range r.Loops {
			on := l.State != diagnosis.LoopDisabled && (l.Name == "node-health" || l.Name == "taint-eviction")
			if folder := "components/" + l.Name; on && !slices.Contains(folders, folder) {
				folders = append(folders, folder)
			}
		}
	}
	return folders
}
