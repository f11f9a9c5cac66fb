package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// tokenFile gives each call the token that its file has then: a projected token of a ServiceAccount
// is replaced before it ends. gRPC sends it over TLS only.
type tokenFile string

var errEmptyToken = errors.New("the file is empty")

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (f tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	content, err := os.ReadFile(string(f))
	token := strings.TrimSpace(string(content))
	if err == nil && token == "" {
		err = errEmptyToken
	}
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, fmt.Sprintf("read token file %s: %v", string(f), err))
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (tokenFile) RequireTransportSecurity() bool { return true }

// callOptions returns the options of each call.
func (c *Config) callOptions() []grpc.CallOption {
	if c.TokenFile == "" {
		return nil
	}
	return []grpc.CallOption{grpc.PerRPCCredentials(tokenFile(c.TokenFile))}
}
