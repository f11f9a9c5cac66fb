package nodeagent

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/settings"
)

// defaultEndpoint is the address of the endpoint that the design names.
const defaultEndpoint = "127.0.0.1:7604"

// printKubeconfig is the command "trivet-agent kubeconfig".
func printKubeconfig(call settings.Invocation) int {
	const command = "trivet-agent kubeconfig"
	options := kubeconfig.Options{Endpoint: defaultEndpoint, StateDir: DefaultConfig(nil).StateDir}
	fs := pflag.NewFlagSet(command, pflag.ContinueOnError)
	fs.Bool("help", false, "print this and exit")
	fs.StringVar(&options.From, "from", "", "Kubeconfig of the kubelet that leads to kube-apiserver, for example /etc/kubernetes/kubelet.conf.")
	fs.StringVar(&options.Endpoint, "kubelet-endpoint", options.Endpoint, "Address of the endpoint, as given to trivet-agent.")
	fs.StringVar(&options.StateDir, "state-dir", options.StateDir, "Directory with the authority of the endpoint, as given to trivet-agent; it is made if there is none.")
	if call.Answer(fs, "prints the kubeconfig that leads the kubelet through the endpoint of trivet-agent", "") {
		return settings.ExitOK
	}
	problems := settings.Apply(fs, call.Args, call.Environ, configKind)
	if options.From == "" {
		problems = append(problems, errors.New("--from: the kubeconfig of the kubelet is needed"))
	}
	if len(problems) > 0 {
		return call.Refuse(command, problems...)
	}
	options.Logger = observe.NewLogger(call.Stderr, observe.LogConfig{Level: "warn"})
	if err := kubeconfig.Print(call.Stdout, options); err != nil {
		return call.Fail(command, err)
	}
	return settings.ExitOK
}
