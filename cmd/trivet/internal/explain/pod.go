package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/slices"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// podOptions are the command's flags.
type podOptions struct {
	client.Flags

	service, namespace string
}

func newPodCommand(streams printer.Streams) *cobra.Command {
	var opts podOptions
	command := &cobra.Command{
		Use:   "pod NAME --service SERVICE",
		Short: "Explain why a pod is an endpoint of a Service or is not",
		Long: `Explain why a pod gets the traffic of a Service or does not: from the Service's selector, label by label, by way of the pod's
phase, addresses, node, readiness and ports to its place in an EndpointSlice and its hints. The first line answers the question.
Marks are those of "trivet explain node": the first broken link, with ▶ before it, is where to look.

Exit codes: 0 the chain is whole; 1 it is broken; 2 there was no answer, or the slices are not as they should be yet; 64 wrong
usage.`,
		Example: `  trivet explain pod web-7d4b9-x2x1p --service shop/web
  trivet explain pod web-7d4b9-x2x1p --service web -n shop -o json`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, args []string) error {
			return explainPod(command.Context(), streams, &opts, args)
		},
	}
	opts.Register(command, streams, "text", "json")
	command.Flags().StringVar(&opts.service, "service", "", "The Service: NAMESPACE/NAME, or NAME with --namespace.")
	command.Flags().StringVarP(&opts.namespace, "namespace", "n", "", "The namespace of the Service and the pod.")
	return command
}

func explainPod(ctx context.Context, streams printer.Streams, opts *podOptions, args []string) error {
	request, err := opts.parse(args)
	if err != nil {
		return err
	}
	conn, err := opts.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	asking, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()
	response, err := gatewayv1.NewSliceServiceClient(conn).ExplainEndpoint(asking, request)
	if err != nil {
		return opts.Unanswered(ctx, fmt.Sprintf("explanation of pod %s in %s", request.Pod, slices.ShortName(request.Name)), err)
	}
	gist := gist{answer: endpointAnswer(request, response), well: true, read: "the cache"}
	if err := show(streams, &opts.Flags, response, gist); err != nil {
		return client.Unprinted("explanation", err)
	}
	return endpointVerdict(request, response)
}

func (o *podOptions) parse(args []string) (*gatewayv1.ExplainEndpointRequest, error) {
	problems := o.Validate()
	request := &gatewayv1.ExplainEndpointRequest{}
	if len(args) == 1 {
		request.Pod = strings.TrimPrefix(args[0], "pod/")
	}
	if !slices.IsPodName(request.Pod) {
		problems = append(problems, fmt.Errorf("explain pod takes the name of one pod, got %q", args))
	}
	var err error
	if o.service == "" {
		err = errors.New("--service: say which Service")
	} else {
		request.Name, err = slices.ParseName(o.service, o.namespace)
	}
	return request, exit.UsageError(append(problems, err)...)
}

// endpointAnswer is the answer in one sentence.
func endpointAnswer(request *gatewayv1.ExplainEndpointRequest, response *gatewayv1.ExplainEndpointResponse) string {
	is := "is an endpoint of "
	if !response.GetIncluded() {
		is = "is no endpoint of "
	}
	answer := request.Pod + " " + is + slices.ShortName(request.Name)
	if link := broken(response); link != nil {
		if response.GetIncluded() {
			answer += ", but gets no traffic"
		}
		answer += ": " + continued(link.GetFinding())
	}
	if !response.GetSettled() {
		answer += "; a write is due"
	}
	return answer
}

func endpointVerdict(request *gatewayv1.ExplainEndpointRequest, response *gatewayv1.ExplainEndpointResponse) error {
	name := printer.Plain(request.Pod)
	if link := broken(response); link != nil {
		return &exit.Error{Code: exit.Findings, Summary: fmt.Sprintf("%s: the chain breaks at %s", name, printer.Plain(link.GetCode()))}
	}
	for _, link := range response.GetEvidence() {
		if link.GetVerdict() == statusv1.Evidence_VERDICT_UNKNOWN {
			return &exit.Error{Code: exit.Undetermined, Summary: fmt.Sprintf("%s: %s could not be looked at", name, printer.Plain(link.GetCode()))}
		}
	}
	if !response.GetSettled() {
		return &exit.Error{Code: exit.Undetermined, Summary: name + ": its slices are not as they should be yet"}
	}
	return nil
}
