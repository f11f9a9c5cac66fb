package findings

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// ignoreFlags are the flags and the argument of `findings ignore` and `findings unignore`.
type ignoreFlags struct {
	client.Flags

	name     string // the API's name
	duration time.Duration
	comment  string
	dryRun   bool
}

const (
	// maxDuration is the API's limit of --for.
	maxDuration = 365 * 24 * time.Hour
	// maxComment is the API's limit of --comment, in characters.
	maxComment = 1024
)

const ignoreExitCodes = `

Exit codes:
  0   Done; with --dry-run, it can be done.
  2   There is no answer, or the finding has ended.
  64  The command line is wrong.`

func newIgnoreCommand(streams printer.Streams) *cobra.Command {
	var flags ignoreFlags
	command := &cobra.Command{
		Use:   "ignore NAME",
		Short: "Ignore a finding: it is not repaired and counts as no problem",
		Long: `Ignore a finding, for a time or until it ends: it is neither repaired nor counted as a problem. Another
"ignore" replaces the time and the comment.` + ignoreExitCodes,
		Example: `  trivet findings ignore duplicate-owner.node-ports.30080 --for 24h --comment "until the migration"
  trivet findings ignore leaked.node-ports.30081`,
		RunE: func(command *cobra.Command, args []string) error {
			if err := flags.parse(command, args); err != nil {
				return err
			}
			var ttl *durationpb.Duration // absent: until the finding ends
			if flags.duration > 0 {
				ttl = durationpb.New(flags.duration)
			}
			return ignore(command.Context(), &flags, ttl)
		},
	}
	flags.register(command, streams)
	command.Flags().DurationVar(&flags.duration, "for", 0, "For how long; at most 8760h. Default: until the finding ends.")
	command.Flags().StringVar(&flags.comment, "comment", "", "Why, for people.")
	return command
}

func newUnignoreCommand(streams printer.Streams) *cobra.Command {
	var flags ignoreFlags
	command := &cobra.Command{
		Use:     "unignore NAME",
		Short:   "Do not ignore a finding any more",
		Long:    "Do not ignore a finding any more. It is then open or pending, as it was observed." + ignoreExitCodes,
		Example: "  trivet findings unignore duplicate-owner.node-ports.30080",
		RunE: func(command *cobra.Command, args []string) error {
			if err := flags.parse(command, args); err != nil {
				return err
			}
			return unignore(command.Context(), &flags)
		},
	}
	flags.register(command, streams)
	return command
}

func (f *ignoreFlags) register(command *cobra.Command, streams printer.Streams) {
	f.Register(command, streams, "text")
	command.Flags().BoolVar(&f.dryRun, "dry-run", false, "Check everything and change nothing.")
	command.ValidArgsFunction = Complete(&f.Flags)
}

func (f *ignoreFlags) parse(command *cobra.Command, args []string) error {
	problems := f.Validate()
	if len(args) == 1 {
		var err error
		f.name, err = ParseName(args[0])
		problems = append(problems, err)
	} else {
		problems = append(problems, fmt.Errorf("findings %s takes the name of one finding, got %q", command.Name(), args))
	}
	if flag := command.Flags().Lookup("for"); flag != nil && flag.Changed && (f.duration <= 0 || f.duration > maxDuration) {
		problems = append(problems, fmt.Errorf("--for=%s: must be positive and at most 8760h", f.duration))
	}
	if len([]rune(f.comment)) > maxComment {
		problems = append(problems, errors.New("--comment: longer than 1024 characters"))
	}
	return exit.UsageError(problems...)
}

func ignore(ctx context.Context, flags *ignoreFlags, ttl *durationpb.Duration) error {
	response, err := client.Mutate(ctx, &flags.Flags, "answer about "+flags.name, func(ctx context.Context, conn grpc.ClientConnInterface, requestID string) (*bootstrapv1.IgnoreFindingResponse, error) {
		return bootstrapv1.NewFindingServiceClient(conn).IgnoreFinding(ctx, &bootstrapv1.IgnoreFindingRequest{
			Name: flags.name, Ttl: ttl, Comment: flags.comment, ValidateOnly: flags.dryRun, RequestId: requestID,
		})
	})
	return report(flags, response, response.GetFinding(), err)
}

func unignore(ctx context.Context, flags *ignoreFlags) error {
	response, err := client.Mutate(ctx, &flags.Flags, "answer about "+flags.name, func(ctx context.Context, conn grpc.ClientConnInterface, requestID string) (*bootstrapv1.UnignoreFindingResponse, error) {
		return bootstrapv1.NewFindingServiceClient(conn).UnignoreFinding(ctx, &bootstrapv1.UnignoreFindingRequest{
			Name: flags.name, ValidateOnly: flags.dryRun, RequestId: requestID,
		})
	})
	return report(flags, response, response.GetFinding(), err)
}

// report prints the finding as it is after the call, unless the call failed.
func report(flags *ignoreFlags, response proto.Message, finding *bootstrapv1.Finding, err error) error {
	if err != nil {
		return err
	}
	if err := flags.Print(response, func() error { return flags.PrintLine(ignoreResult(flags, finding)) }); err != nil {
		return client.CannotPrint("finding", err)
	}
	return nil
}

func ignoreResult(flags *ignoreFlags, finding *bootstrapv1.Finding) string {
	text := ShortName(flags.name) + " is " + State(finding)
	if ignored := Ignored(finding); ignored != "" {
		text += " " + ignored
	}
	if flags.dryRun {
		text += " (dry run: nothing was changed)"
	}
	return text
}
