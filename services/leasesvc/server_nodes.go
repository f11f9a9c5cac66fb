package leasesvc

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
)

// nodeServer answers the RPCs about node health, from what the loop has published.
type nodeServer struct {
	leasev1.UnimplementedNodeHealthServiceServer

	service *Service
}

func (s *nodeServer) register(registrar grpc.ServiceRegistrar) {
	leasev1.RegisterNodeHealthServiceServer(registrar, s)
}

// edition is what was last published.
func (s *nodeServer) snapshot() (*nodehealthcontroller.Snapshot, error) {
	if !s.service.nodeHealth.enabled {
		return nil, errLoopDisabled
	}
	edition := s.service.nodeHealth.publisher.Snapshot()
	if edition == nil {
		return nil, errNotSynced
	}
	return edition, nil
}

// find returns a Node that is judged here.
func (s *nodeServer) find(resource string) (*nodehealthcontroller.Snapshot, *nodehealthcontroller.Node, error) {
	edition, err := s.snapshot()
	if err != nil {
		return nil, nil, err
	}
	name := strings.TrimPrefix(resource, "nodes/")
	number := s.service.nodeHealth.shardOf(name)
	if _, held := s.service.board.Get(number); !held {
		return nil, nil, elsewhereError{shard: number}
	}
	node := edition.Node(name)
	switch {
	case node == nil:
		return nil, nil, nodeNotFoundError{name: name}
	case !node.Held:
		return nil, nil, errNotSynced // the shard has come a moment ago
	}
	return edition, node, nil
}

// GetNodeHealth implements the RPC.
func (s *nodeServer) GetNodeHealth(ctx context.Context, request *leasev1.GetNodeHealthRequest) (*leasev1.GetNodeHealthResponse, error) {
	edition, node, err := s.find(request.Name)
	if err != nil {
		return nil, s.problem(err)
	}
	standing := nodeStatusOf(edition, node)
	s.service.sharpen(&standing, s.service.sessionOf(ctx, node))
	return &leasev1.GetNodeHealthResponse{
		Node:      nodeHealthOf(edition, node, &standing),
		Freshness: status.Freshness(s.service.member.ID, node.Epoch, node.Object.ResourceVersion),
	}, nil
}

// ListNodeHealth implements the RPC.
func (s *nodeServer) ListNodeHealth(_ context.Context, request *leasev1.ListNodeHealthRequest) (*leasev1.ListNodeHealthResponse, error) {
	edition, err := s.snapshot()
	if err != nil {
		return nil, s.problem(err)
	}
	arguments, after := fmt.Sprintf("nodes\x00%d\x00%s", request.Health, request.Zone), ""
	if request.PageToken != "" {
		if after, err = parsePageToken(request.PageToken, arguments); err != nil {
			return nil, s.problem(err)
		}
	}
	page, more := edition.Page(after, pageSize(request.PageSize), func(n *nodehealthcontroller.Node) bool {
		return inZone(n, request.Zone) &&
			(request.Health == leasev1.NodeHealth_HEALTH_UNSPECIFIED || request.Health == healthOf(explain.HealthOf(n.Object, n.Assessment.Health)))
	})
	response := &leasev1.ListNodeHealthResponse{Freshness: status.Freshness(s.service.member.ID, edition.Epoch, "")}
	for _, node := range page {
		standing := nodeStatusOf(edition, node)
		response.Nodes = append(response.Nodes, nodeHealthOf(edition, node, &standing))
	}
	if more {
		response.NextPageToken = pageToken(arguments, page[len(page)-1].Object.Name)
	}
	return response, nil
}

func inZone(n *nodehealthcontroller.Node, zone string) bool {
	return zone == "" || zoneName(n.Zone) == zone
}

// ListZones implements the RPC.
func (s *nodeServer) ListZones(context.Context, *leasev1.ListZonesRequest) (*leasev1.ListZonesResponse, error) {
	edition, err := s.snapshot()
	if err != nil {
		return nil, s.problem(err)
	}
	held, ok := s.service.board.Get(nodeShard)
	if !ok {
		return nil, s.problem(elsewhereError{shard: nodeShard})
	}
	response := &leasev1.ListZonesResponse{Freshness: status.Freshness(s.service.member.ID, held.Epoch(), "")}
	for _, zone := range edition.Zones {
		response.Zones = append(response.Zones, zoneOf(edition, zone))
	}
	if blindness := edition.Blindness; blindness != nil {
		response.BlindBy, response.BlindTime = blindness.String(), timestamp(edition.Wall(blindness.Since))
	}
	return response, nil
}

// ExplainNodeHealth implements the RPC.
func (s *nodeServer) ExplainNodeHealth(ctx context.Context, request *leasev1.ExplainNodeHealthRequest) (*leasev1.ExplainNodeHealthResponse, error) {
	edition, node, err := s.find(request.Name)
	if err != nil {
		return nil, s.problem(err)
	}
	facts := s.service.facts(ctx, edition, node)
	chain := explain.Explain(facts)
	response := &leasev1.ExplainNodeHealthResponse{
		Node: nodeHealthOf(edition, node, &facts.NodeStatus), FirstBroken: int32(chain.FirstBroken), Silence: duration(chain.Silence),
		Freshness: status.Freshness(s.service.member.ID, node.Epoch, node.Object.ResourceVersion),
	}
	for i := range chain.Links {
		response.Evidence = append(response.Evidence, evidenceOf(&chain.Links[i], s.service.member.ID))
	}
	return response, nil
}

// standingOf is how a Node stands as published. For one that a session keeps alive it does not say when that last beat.
func nodeStatusOf(edition *nodehealthcontroller.Snapshot, node *nodehealthcontroller.Node) explain.NodeStatus {
	j := node.Assessment
	standing := explain.NodeStatus{
		Node: node.Object, Health: explain.HealthOf(node.Object, j.Health), By: j.By, HeldBy: node.HeldBy,
	}
	if j.Heard > 0 || j.By == nodehealth.GraceStart {
		standing.Heard = edition.Wall(j.Heard)
	}
	if j.Deadline > 0 {
		standing.Deadline = edition.Wall(j.Deadline)
	}
	return standing
}
