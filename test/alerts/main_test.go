package alerts

import (
	"context"
	"flag"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

var (
	prometheusPath = flag.String("alerts.prometheus", "", "the program prometheus; without it the live test is skipped")
	rulesDir       = flag.String("alerts.rules", "", "folder with the rules, their durations divided by -alerts.scale")
	scale          = flag.Float64("alerts.scale", 20, "by how much the ranges and `for` of the rules are shorter than shipped")
	only           = flag.String("alerts.faults", "", "alerts or quiet entries to try, separated by commas; empty: all")
	out            = flag.String("alerts.out", "", "file for the table, in Markdown")
	drawer         = flag.String("alerts.drawer", "", "the program of tools/dashboards, which draws the dashboards at the end")
	pictures       = flag.String("alerts.pictures", "", "folder for the pictures of the dashboards")
)

// panicHeader makes the handler of a call panic.
const panicHeader = "test-panic"

func TestMain(m *testing.M) { worldtest.Main(m, panicking) }

// panicking returns a program whose unary handlers panic if a caller asks for it.
func panicking(p process.Program) process.Program {
	build := p.Build
	p.Build = func(deps process.Deps) (process.Service, error) {
		service, err := build(deps)
		if err != nil {
			return nil, err
		}
		return panickingService{service}, nil
	}
	return p
}

type panickingService struct{ process.Service }

func (s panickingService) Register(to grpc.ServiceRegistrar) {
	s.Service.Register(panickingRegistrar{to})
}

type panickingRegistrar struct{ grpc.ServiceRegistrar }

func (r panickingRegistrar) RegisterService(desc *grpc.ServiceDesc, implementation any) {
	hooked := *desc
	hooked.Methods = nil
	for _, method := range desc.Methods {
		handle := method.Handler
		method.Handler = func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			return handle(srv, ctx, decode, panicsIfAsked(interceptor))
		}
		hooked.Methods = append(hooked.Methods, method)
	}
	r.ServiceRegistrar.RegisterService(&hooked, implementation)
}

// panicsIfAsked puts the panic inside of all interceptors of the server, where a handler's is.
func panicsIfAsked(outer grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		inner := func(ctx context.Context, request any) (any, error) {
			if len(metadata.ValueFromIncomingContext(ctx, panicHeader)) > 0 {
				panic("a caller asked for a panic")
			}
			return handler(ctx, request)
		}
		if outer == nil {
			return inner(ctx, request)
		}
		return outer(ctx, request, info, inner)
	}
}
