package term

import (
	"time"
)

// Member is one running replica of a service, as its member key describes it to the others.
type Member struct {
	// ID is unique among the replicas of the service and new at every start.
	ID string `json:"id"`
	// Service is the name of the service, for example "leasesvc".
	Service string `json:"service"`
	// Cluster is the name of the cluster whose duties the replica carries.
	Cluster string `json:"cluster"`
	// Version of the build.
	Version string `json:"version,omitempty"`
	// GRPCAddress is where others reach the replica's gRPC server, host:port.
	GRPCAddress string `json:"grpcAddress,omitempty"`
	// AdminAddress is where others reach the replica's admin HTTP server, host:port.
	AdminAddress string `json:"adminAddress,omitempty"`
	// StartTime is when the process started, by its own clock.
	StartTime time.Time `json:"startTime"`
}
