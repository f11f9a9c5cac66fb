// Package slices is `trivet slices`: the EndpointSlices of Services, and the plans and writes of
// one Service.
//
// A Service whose last sync failed or whose slices another writer keeps reverting needs attention,
// with exit code 1. Package list has the rules of lists and watches; `trivet slices plan` has the
// exit codes of kubectl diff.
package slices

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// NewCommand returns `trivet slices`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var namespace string
	command := list.NewCommand(streams, list.Command[*slicev1.ServiceSlices]{
		Flags:   &flags,
		Use:     "slices [NAMESPACE/NAME]",
		Aliases: []string{"slice", "services", "service", "svc"},
		Short:   "Show the EndpointSlices of Services",
		Long: `Show the EndpointSlices of Services: the ready endpoints, the number of slices and the smallest possible
number, their fill, and the age, the trigger and the writes of the last sync: +created ~updated -deleted.
SOURCE is what the endpoints come from: the Pods that the Service selects (selector), its Endpoints object
(endpoints), or both.

  kept       The slices are up to date.
  failing    The last sync failed.
  contended  Another writer keeps reverting the slices.
  partial    Addresses of the Endpoints object are in no slice: they are too many, or invalid. -o wide counts
             them (DROPPED); MESSAGE says what to do.
  mixed      There are slices of both sources, and traffic goes to the endpoints of both.
  unmanaged  Trivet writes no slices for the Service: it has no selector and no mirrored Endpoints object, or is
             an ExternalName.

Only the leader of the Service's shard knows its syncs; without a leader, their columns are empty.`,
		ExitOne: "A Service is failing or contended.",
		Example: `  trivet slices
  trivet slices -n shop -w
  trivet slices shop/web -o json
  trivet slices plan shop/web`,
		NotChanges: "Syncs without writes are not changes.",
		RegisterFlags: func(command *cobra.Command) {
			command.Flags().StringVarP(&namespace, "namespace", "n", "", "Only Services of this namespace, which NAME then omits.")
			client.CompleteFlagFrom(command, "namespace", completeNamespace(&flags.Flags))
		},
		Validate:  func() []error { return []error{checkNamespace(namespace)} },
		ParseName: func(text string) (string, error) { return ParseName(text, namespace) },
		ShortName: func(service *slicev1.ServiceSlices) string {
			return strings.TrimPrefix(ShortName(service.GetName()), namespace+"/")
		},
		Kind: kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*slicev1.ServiceSlices] {
			return source(conn, parent(flags.Name, namespace))
		},
	})
	command.AddCommand(newPlanCommand(streams), newReconcileCommand(streams))
	return command
}

// parent returns the namespace to ask for, which is enough to watch one Service; empty for all.
func parent(name, namespace string) string {
	if parent, _, found := strings.Cut(name, "/serviceslices/"); found {
		return parent
	}
	if namespace != "" {
		return "namespaces/" + namespace
	}
	return ""
}

func checkNamespace(namespace string) error {
	if namespace == "" || isLabel(namespace) && !strings.HasPrefix(namespace, "-") {
		return nil
	}
	return fmt.Errorf("--namespace=%q: must be lower-case letters, digits and -, at most 63", namespace)
}

func isLabel(text string) bool { return regexp.MustCompile(`^[-a-z0-9]{1,63}$`).MatchString(text) }

// IsPodName reports whether a text is a valid name of a Pod.
func IsPodName(text string) bool {
	return len(text) <= 253 && regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`).MatchString(text)
}

// ParseName returns the API's name for NAMESPACE/NAME, for NAME with the given namespace, or for
// the API's name.
func ParseName(text, within string) (string, error) {
	namespace, name, found := strings.Cut(ShortName(text), "/")
	if !found {
		namespace, name = within, text
	}
	switch {
	case namespace == "":
		return "", fmt.Errorf("%q: give NAMESPACE/NAME, or the namespace with -n", text)
	case within != "" && namespace != within:
		return "", fmt.Errorf("%q is not in the namespace of --namespace=%s", text, within)
	case !isLabel(namespace) || !isLabel(name):
		return "", fmt.Errorf("%q is not the name of a Service: NAMESPACE/NAME, of lower-case letters, digits and dashes", text)
	}
	return "namespaces/" + namespace + "/serviceslices/" + name, nil
}

// ShortName returns NAMESPACE/NAME for the API's name of a Service.
func ShortName(name string) string {
	return strings.Replace(strings.TrimPrefix(name, "namespaces/"), "/serviceslices/", "/", 1)
}

// pageSize is the API's limit, because each page costs one call to each replica.
const pageSize = 1000

func source(conn grpc.ClientConnInterface, parent string) list.Source[*slicev1.ServiceSlices] {
	service := slicev1.NewSliceServiceClient(conn)
	return list.Source[*slicev1.ServiceSlices]{
		Get: func(ctx context.Context, name string) (*slicev1.ServiceSlices, proto.Message, error) {
			response, err := service.GetServiceSlices(ctx, &slicev1.GetServiceSlicesRequest{Name: name})
			return response.GetServiceSlices(), response, err
		},
		Page: func(ctx context.Context, token string) (list.Page[*slicev1.ServiceSlices], error) {
			response, err := service.ListServiceSlices(ctx, &slicev1.ListServiceSlicesRequest{Parent: parent, PageSize: pageSize, PageToken: token})
			return list.PageOf(response, response.GetServiceSlices(), err)
		},
		Response: func(all list.Page[*slicev1.ServiceSlices]) proto.Message {
			return &slicev1.ListServiceSlicesResponse{
				ServiceSlices: all.Items, ResumeToken: all.ResumeToken, Sources: all.Sources, Missing: all.Missing,
			}
		},
		Watch: func(ctx context.Context, token string) (watch.Receive[*slicev1.ServiceSlices], error) {
			stream, err := service.WatchServiceSlices(ctx, &slicev1.WatchServiceSlicesRequest{Parent: parent, ResumeToken: token})
			return watch.ReceiveFrom(stream, err, (*slicev1.WatchServiceSlicesResponse).GetServiceSlices)
		},
	}
}

// CompleteFlag completes the name of a Service as the value of a flag: NAMESPACE/NAME, or NAME with
// the given namespace. It also completes the flag --namespace.
func CompleteFlag(command *cobra.Command, flag string, flags *client.Flags, namespace *string) {
	client.CompleteFlagFrom(command, flag, complete(flags, namespace))
	client.CompleteFlagFrom(command, "namespace", completeNamespace(flags))
}

// complete completes the name of a Service as an argument.
func complete(flags *client.Flags, namespace *string) cobra.CompletionFunc {
	return list.CompleteName(flags, kind, func(conn grpc.ClientConnInterface) list.Source[*slicev1.ServiceSlices] {
		return source(conn, parent("", *namespace))
	}, func(service *slicev1.ServiceSlices) string {
		return strings.TrimPrefix(ShortName(service.GetName()), *namespace+"/")
	})
}

// completeNamespace completes the namespaces of Services.
func completeNamespace(flags *client.Flags) cobra.CompletionFunc {
	return list.Complete(flags, func(conn grpc.ClientConnInterface) list.Source[*slicev1.ServiceSlices] {
		return source(conn, "")
	}, func(service *slicev1.ServiceSlices) (word, description string) {
		namespace, _, _ := strings.Cut(ShortName(service.GetName()), "/")
		return namespace, ""
	})
}
