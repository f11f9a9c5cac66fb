package repair

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// follow shows the progress of a repair on standard error until it ends or --wait-duration is over,
// and returns its last state.
func follow(ctx context.Context, flags *writeFlags, repair *bootstrapv1.Repair) (*bootstrapv1.Repair, error) {
	conn, err := flags.Connect()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var goroutines sync.WaitGroup
	defer goroutines.Wait()
	// The end of the wait is no deadline of the stream, which the gateway would end at that moment.
	waitCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(flags.waitDuration, cancel).Stop()
	updates := make(chan watch.Update[*bootstrapv1.Repair])
	goroutines.Go(func() {
		watch.Watch[*bootstrapv1.Repair]{Open: openRepairs(conn, nil), Timeout: flags.Timeout}.Run(waitCtx, updates)
	})
	progress := flags.Progress()
	defer progress.Stop()
	progress.Set(summaryOf(repair))
	for repair.GetState() == bootstrapv1.Repair_STATE_RUNNING {
		select {
		case <-waitCtx.Done():
			if ctx.Err() != nil {
				return nil, &exit.Error{Code: exit.Interrupted, Summary: printer.Sanitize(repair.GetName() + " continues in the service; trivet repair show and cancel take this name")}
			}
			return repair, nil
		case update := <-updates:
			if update.Lost != nil {
				progress.Set(list.LostNotice(update.Lost))
			}
			if update.Event == nil || update.Event.Item.GetName() != repair.GetName() {
				continue
			}
			if update.Event.Type == metav1.EventType_EVENT_TYPE_DELETED {
				return nil, &exit.Error{Code: exit.Undetermined, Summary: printer.Sanitize(repair.GetName() + " is not remembered any more")}
			}
			if repair = update.Event.Item; repair.GetState() == bootstrapv1.Repair_STATE_RUNNING {
				progress.Set(summaryOf(repair))
			}
		}
	}
	return repair, nil
}

// openRepairs watches repairs in some states; nil selects all.
func openRepairs(conn grpc.ClientConnInterface, states []bootstrapv1.Repair_State) watch.Open[*bootstrapv1.Repair] {
	return func(ctx context.Context, token string) (watch.Receive[*bootstrapv1.Repair], error) {
		stream, err := bootstrapv1.NewRepairServiceClient(conn).WatchRepairs(ctx, &bootstrapv1.WatchRepairsRequest{ResumeToken: token, States: states})
		return watch.ReceiveFrom(stream, err, (*bootstrapv1.WatchRepairsResponse).GetRepair)
	}
}

func getRepair(ctx context.Context, flags *client.Flags, name string) (*bootstrapv1.GetRepairResponse, error) {
	return client.Call(ctx, flags, "answer about "+name, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.GetRepairResponse, error) {
		return bootstrapv1.NewRepairServiceClient(conn).GetRepair(ctx, &bootstrapv1.GetRepairRequest{Name: name})
	})
}
