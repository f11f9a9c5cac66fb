package findings

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// pageSize is the largest that the gateway gives.
const pageSize = 5000

// source asks the gateway for findings.
type source struct {
	client gatewayv1.BootstrapServiceClient
	code   bootstrapv1.Finding_Code
	ended  bool
}

var _ list.Source[*bootstrapv1.Finding] = source{}

// Find looks a finding up by the name of the API, also one that has ended; the API has no question about one.
func Find(ctx context.Context, client gatewayv1.BootstrapServiceClient, name string) (*bootstrapv1.Finding, error) {
	for token := ""; ; {
		response, err := client.ListFindings(ctx, &gatewayv1.ListFindingsRequest{ShowEnded: true, PageSize: pageSize, PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, finding := range response.GetFindings() {
			if finding.GetName() == name {
				return finding, nil
			}
		}
		switch response.GetNextPageToken() {
		case "":
			return nil, rpcerror.New(codes.NotFound, "FINDING_NOT_FOUND", "nothing is known of "+name)
		case token:
			return nil, fmt.Errorf("the gateway gave the page token %q twice", token)
		}
		token = response.GetNextPageToken()
	}
}

func (s source) Get(ctx context.Context, name string) (*bootstrapv1.Finding, proto.Message, error) {
	finding, err := Find(ctx, s.client, name)
	return finding, finding, err
}

func (s source) Page(ctx context.Context, token string) (list.Page[*bootstrapv1.Finding], error) {
	response, err := s.client.ListFindings(ctx, &gatewayv1.ListFindingsRequest{
		Code: s.code, ShowEnded: s.ended, PageSize: pageSize, PageToken: token,
	})
	return list.Page[*bootstrapv1.Finding]{Items: response.GetFindings(), Next: response.GetNextPageToken()}, err
}

func (source) Answer(list list.Page[*bootstrapv1.Finding]) proto.Message {
	return &gatewayv1.ListFindingsResponse{Findings: list.Items}
}

func (s source) Watch(ctx context.Context) (func() (list.Event[*bootstrapv1.Finding], error), error) {
	stream, err := s.client.WatchFindings(ctx, &gatewayv1.WatchFindingsRequest{})
	if err != nil {
		return nil, err
	}
	return func() (list.Event[*bootstrapv1.Finding], error) {
		response, err := stream.Recv()
		return list.Event[*bootstrapv1.Finding]{
			Type: list.TypeOf(response.GetType()), Item: response.GetFinding(), Missing: response.GetMissing(), Message: response,
		}, err
	}, nil
}

// Notes is empty: a list of findings says everything itself.
func (source) Notes(context.Context) []string { return nil }

// connect gives a source over a connection of its own, and what closes it.
func connect(flags *client.Flags) (source, func(), error) {
	client, leave, err := client.Client(flags, gatewayv1.NewBootstrapServiceClient)
	return source{client: client}, leave, err
}
