package deploy

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/test/lab/gobuild"
)

// The agent's command line is not a package that a test of another folder may import, so its help
// says which flags it takes.
func TestAgent_TakesEveryFlag(t *testing.T) {
	tellCache(t, "../../cmd/trivet-agent")
	help, err := exec.CommandContext(t.Context(), gobuild.Command(t, "trivet-agent"), "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, help)
	}
	given := map[string][]string{"systemd/trivet-agent.service": unitArguments(t)}
	for _, tree := range append(agentPods(), withAgent) {
		for _, spec := range pods(t, render(t, tree)) {
			for _, container := range spec.Containers {
				if container.Command[0] == "/trivet-agent" {
					given[tree] = container.Args
				}
			}
		}
		if len(given[tree]) == 0 {
			t.Errorf("%s starts no agent", tree)
		}
	}
	for manifest, arguments := range given {
		for _, argument := range arguments {
			flag, _, _ := strings.Cut(argument, "=")
			if !regexp.MustCompile(`(?m)^\s+(-\w, )?` + regexp.QuoteMeta(flag) + `\s`).Match(help) {
				t.Errorf("%s: the agent has no flag %s", manifest, flag)
			}
		}
	}
}

// unitArguments are the arguments in the unit of systemd.
func unitArguments(t *testing.T) []string {
	t.Helper()
	_, command, found := strings.Cut(strings.ReplaceAll(read(t, "deploy/systemd/trivet-agent.service"), "\\\n", " "), "ExecStart=")
	if !found {
		t.Fatal("the unit has no ExecStart")
	}
	command, _, _ = strings.Cut(command, "\n")
	return strings.Fields(command)[1:]
}

// Under systemd the agent has what the static Pod has: the same settings, and no capability.
func TestAgent_UnitEqualsTheStaticPod(t *testing.T) {
	unit, container := unitArguments(t), staticPod(t, "static-pods/agent").Spec.Containers[0]
	for _, argument := range container.Args {
		if strings.HasPrefix(argument, "--node-name=") || strings.HasPrefix(argument, "--log-format=") {
			continue // the name is in the kubelet's certificate, and the journal is text
		}
		if !slices.Contains(unit, argument) {
			t.Errorf("the unit lacks %s, has %v", argument, unit)
		}
	}
	for _, argument := range staticPod(t, "static-pods/agent-endpoint").Spec.Containers[0].Args {
		address, found := strings.CutPrefix(argument, "--kubelet-endpoint=")
		if found && !strings.Contains(read(t, "deploy/systemd/trivet-agent.socket"), "\nListenStream="+address+"\n") {
			t.Errorf("the socket unit does not listen on %s", address)
		}
	}
	text := read(t, "deploy/systemd/trivet-agent.service")
	for _, line := range []string{"CapabilityBoundingSet=", "AmbientCapabilities=", "NoNewPrivileges=yes", "ProtectSystem=strict", "Restart=always"} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
}

// leasesvc takes the tokens of the DaemonSet by default, and the DaemonSet runs on every node.
func TestAgent_DaemonSetIsKnownToLeasesvc(t *testing.T) {
	defaults := defaultFlags(programs()["/leasesvc"])
	sets := ofKind[appsv1.DaemonSet](t, render(t, withAgent), "DaemonSet")
	if len(sets) != 1 {
		t.Fatalf("%d DaemonSets, want one", len(sets))
	}
	spec := sets[0].Spec.Template.Spec
	if account := system + "/" + spec.ServiceAccountName; !strings.Contains(defaults.Lookup("agent-service-accounts").DefValue, account) {
		t.Errorf("account %s is not in --agent-service-accounts=%s", account, defaults.Lookup("agent-service-accounts").DefValue)
	}
	audience := spec.Volumes[0].Projected.Sources[0].ServiceAccountToken.Audience
	if known := defaults.Lookup("token-audiences").DefValue; known != "["+audience+"]" {
		t.Errorf("audience %q, and servers take %s", audience, known)
	}
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Error("a token for kube-apiserver is mounted")
	}
	if !slices.Contains(spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists}) || !spec.HostNetwork ||
		spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet || spec.PriorityClassName != "system-node-critical" {
		t.Errorf("the Pod does not run on every node with its network: %+v", spec)
	}
	if sets[0].Spec.UpdateStrategy.RollingUpdate == nil {
		t.Error("a change does not roll")
	}
}

// defaultFlags are the flags of a server with their defaults.
func defaultFlags(program process.Program) *pflag.FlagSet {
	flags, cfg := pflag.NewFlagSet(program.Name, pflag.ContinueOnError), process.DefaultConfig(program)
	cfg.RegisterFlags(flags)
	program.RegisterFlags(flags)
	return flags
}
