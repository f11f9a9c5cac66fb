package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/slices"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

type podFlags struct {
	client.Flags

	service, namespace string
}

func newPodCommand(streams printer.Streams) *cobra.Command {
	var flags podFlags
	command := &cobra.Command{
		Use:   "pod NAME --service SERVICE",
		Short: "Explain why a Pod is an endpoint of a Service or is not",
		Long: `Explain why a Pod gets the traffic of a Service or does not: from the Service's selector, label by label, by
way of the Pod's phase, addresses, Node, readiness and ports to its place in an EndpointSlice and its hints.
The first line answers the question. The marks are those of "trivet explain node".

Exit codes:
  0   No link is broken.
  1   A link is broken.
  2   There is no answer, a link could not be read, or the slices are not up to date.
  64  The command line is wrong.`,
		Example: `  trivet explain pod web-7d4b9-x2x1p --service shop/web
  trivet explain pod web-7d4b9-x2x1p --service web -n shop -o json`,
		RunE: func(command *cobra.Command, args []string) error {
			return explainPod(command.Context(), streams, &flags, args)
		},
	}
	flags.Register(command, streams, "text", "json")
	command.Flags().StringVar(&flags.service, "service", "", "The Service: NAMESPACE/NAME, or NAME with --namespace.")
	command.Flags().StringVarP(&flags.namespace, "namespace", "n", "", "The namespace of the Service and the Pod.")
	return command
}

func explainPod(ctx context.Context, streams printer.Streams, flags *podFlags, args []string) error {
	request, err := flags.parse(args)
	if err != nil {
		return err
	}
	subject := fmt.Sprintf("explanation of pod %s in %s", request.Pod, slices.ShortName(request.Name))
	response, err := client.Call(ctx, &flags.Flags, subject, func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.ExplainEndpointResponse, error) {
		return gatewayv1.NewSliceServiceClient(conn).ExplainEndpoint(ctx, request)
	})
	if err != nil {
		return err
	}
	if err := show(streams, &flags.Flags, response, headline{text: podHeadline(request, response), healthy: true, versionOf: "cache"}); err != nil {
		return client.CannotPrint("explanation", err)
	}
	if err := chainVerdict(request.Pod, response); err != nil {
		return err
	}
	if !response.GetSettled() {
		return &exit.Error{Code: exit.Undetermined, Summary: printer.Sanitize(request.Pod) + ": the slices are not up to date yet"}
	}
	return nil
}

func (f *podFlags) parse(args []string) (*gatewayv1.ExplainEndpointRequest, error) {
	problems := f.Validate()
	request := &gatewayv1.ExplainEndpointRequest{}
	if len(args) == 1 {
		request.Pod = strings.TrimPrefix(args[0], "pod/")
	}
	if !slices.IsPodName(request.Pod) {
		problems = append(problems, fmt.Errorf("explain pod takes the name of one Pod, got %q", args))
	}
	var err error
	if f.service == "" {
		err = errors.New("--service: required")
	} else {
		request.Name, err = slices.ParseName(f.service, f.namespace)
	}
	return request, exit.UsageError(append(problems, err)...)
}

// podHeadline answers the question in one sentence.
func podHeadline(request *gatewayv1.ExplainEndpointRequest, response *gatewayv1.ExplainEndpointResponse) string {
	verb := "is"
	if !response.GetIncluded() {
		verb = "is not"
	}
	text := fmt.Sprintf("%s %s an endpoint of %s", request.Pod, verb, slices.ShortName(request.Name))
	if link := firstBroken(response); link != nil {
		if response.GetIncluded() {
			text += ", but gets no traffic"
		}
		text += ": " + asClause(link.GetFinding())
	}
	if !response.GetSettled() {
		text += "; a write is due"
	}
	return text
}
