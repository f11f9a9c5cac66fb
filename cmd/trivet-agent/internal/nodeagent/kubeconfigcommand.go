package nodeagent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/settings"
)

// defaultEndpoint is the address of the endpoint that the design names.
const defaultEndpoint = "127.0.0.1:7604"

// printKubeconfig is the command "trivet-agent kubeconfig".
func printKubeconfig(call invocation) int {
	const command = "trivet-agent kubeconfig"
	options := kubeconfig.Options{Endpoint: defaultEndpoint, StateDir: DefaultConfig(nil).StateDir}
	fs := pflag.NewFlagSet(command, pflag.ContinueOnError)
	fs.Bool("help", false, "print this and exit")
	fs.StringVar(&options.From, "from", "", "Kubeconfig of the kubelet that leads to kube-apiserver, for example /etc/kubernetes/kubelet.conf.")
	fs.StringVar(&options.Endpoint, "kubelet-endpoint", options.Endpoint, "Address of the endpoint, as given to trivet-agent.")
	fs.StringVar(&options.StateDir, "state-dir", options.StateDir, "Directory with the authority of the endpoint, as given to trivet-agent; it is made if there is none.")
	if slices.Contains(call.args, "--help") || slices.Contains(call.args, "-h") {
		fmt.Fprintf(call.stdout, "%s: prints the kubeconfig that leads the kubelet through the endpoint of trivet-agent\n\nFlags:\n%s", command, fs.FlagUsages())
		return exitOK
	}
	problems := settings.Apply(fs, call.args, call.environ, configKind)
	if options.From == "" {
		problems = append(problems, errors.New("--from: the kubeconfig of the kubelet is needed"))
	}
	if len(problems) > 0 {
		return reportProblems(call.stderr, command, problems)
	}
	options.Logger = observe.NewLogger(call.stderr, observe.LogConfig{Level: "warn"})
	if err := kubeconfig.Print(call.stdout, options); err != nil {
		fmt.Fprintf(call.stderr, "%s: %v\n", command, err)
		return exitFailure
	}
	return exitOK
}
