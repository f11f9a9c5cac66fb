package explain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/slices"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

type endpointFlags struct {
	client.Flags

	service, namespace string
}

func newEndpointCommand(streams printer.Streams) *cobra.Command {
	var flags endpointFlags
	command := &cobra.Command{
		Use:     "endpoint POD|ADDRESS --service SERVICE",
		Aliases: []string{"pod"},
		Short:   "Explain why a Pod or an address is an endpoint of a Service or is not",
		Long: `Explain why a Pod or an IP address gets the traffic of a Service or does not: from the Service's selector,
label by label, by way of the Pod's phase, addresses, Node, readiness and ports to its place in an
EndpointSlice and its hints. The first line answers the question. The marks are those of "trivet explain
node".

Exit codes:
  0   No link failed.
  1   A link failed.
  2   There is no answer, a link could not be read, or the slices are not up to date.
  64  The command line is wrong.`,
		Example: `  trivet explain endpoint web-7d4b9-x2x1p --service shop/web
  trivet explain endpoint 10.244.1.17 --service shop/web
  trivet explain endpoint web-7d4b9-x2x1p --service web -n shop -o json`,
		RunE: func(command *cobra.Command, args []string) error {
			return explainEndpoint(command.Context(), streams, &flags, args)
		},
	}
	flags.Register(command, streams, "text")
	command.Flags().StringVar(&flags.service, "service", "", "The Service: NAMESPACE/NAME, or NAME with --namespace.")
	command.Flags().StringVarP(&flags.namespace, "namespace", "n", "", "The namespace of the Service and the Pod.")
	command.ValidArgsFunction = cobra.NoFileCompletions
	slices.CompleteFlag(command, "service", &flags.Flags, &flags.namespace)
	return command
}

func explainEndpoint(ctx context.Context, streams printer.Streams, flags *endpointFlags, args []string) error {
	request, name, err := flags.parse(args)
	if err != nil {
		return err
	}
	subject := fmt.Sprintf("explanation of %s in %s", name, slices.ShortName(request.Name))
	response, err := client.Call(ctx, &flags.Flags, subject, func(ctx context.Context, conn grpc.ClientConnInterface) (*slicev1.ExplainEndpointResponse, error) {
		return slicev1.NewSliceServiceClient(conn).ExplainEndpoint(ctx, request)
	})
	if err != nil {
		return err
	}
	e := explanation{response: response, evidence: response.GetEvidence(), brokenIndex: response.BrokenIndex, sources: response.GetSources()}
	text := endpointHeadline(name, request, response, e.firstFailed())
	if err := show(streams, &flags.Flags, e, headline{text: text}); err != nil {
		return client.CannotPrint("explanation", err)
	}
	if err := chainVerdict(name, e); err != nil {
		return err
	}
	if !response.GetSettled() {
		return &exit.Error{Code: exit.Undetermined, Summary: printer.Sanitize(name) + ": the slices are not up to date yet"}
	}
	return nil
}

// parse returns the request, and the name of the Pod or the address.
func (f *endpointFlags) parse(args []string) (request *slicev1.ExplainEndpointRequest, name string, err error) {
	problems := f.Validate()
	request = &slicev1.ExplainEndpointRequest{}
	if len(args) == 1 {
		name = strings.TrimPrefix(args[0], "pod/")
	}
	address, notAddress := netip.ParseAddr(name)
	switch {
	case notAddress == nil && name == args[0] && address.Zone() == "": // a Pod may have such a name, too: pod/10.0.0.1
		name = address.Unmap().String()
		request.Endpoint = &slicev1.ExplainEndpointRequest_Address{Address: name}
	case slices.IsPodName(name):
		request.Endpoint = &slicev1.ExplainEndpointRequest_Pod{Pod: name}
	default:
		problems = append(problems, fmt.Errorf("explain endpoint takes the name of one Pod or an IP address, got %q", args))
	}
	if f.service == "" {
		problems = append(problems, errors.New("--service: required"))
	} else {
		request.Name, err = slices.ParseName(f.service, f.namespace)
		problems = append(problems, err)
	}
	return request, name, exit.UsageError(problems...)
}

// endpointHeadline answers the question in one sentence.
func endpointHeadline(name string, request *slicev1.ExplainEndpointRequest, response *slicev1.ExplainEndpointResponse, failed *metav1.Evidence) string {
	verb := "is"
	if !response.GetIncluded() {
		verb = "is not"
	}
	text := fmt.Sprintf("%s %s an endpoint of %s", name, verb, slices.ShortName(request.Name))
	if failed != nil {
		if response.GetIncluded() {
			text += ", but gets no traffic"
		}
		text += ": " + asClause(failed.GetMessage())
	}
	if !response.GetSettled() {
		text += "; a write is due"
	}
	return text
}
