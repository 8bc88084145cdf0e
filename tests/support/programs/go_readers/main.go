// Command readers prints the records of a topic as a client written in Go sees them, or reads them as a group.
//
//	readers franz-go BOOTSTRAP TOPIC read_uncommitted|read_committed
//	readers sarama BOOTSTRAP TOPIC read_uncommitted|read_committed COUNT
//	readers franz-go-group BOOTSTRAP TOPIC GROUP COUNT
//
// A line has the partition, the offset, the timestamp in milliseconds, the key, the SHA-256 of the value and the headers;
// bytes are hexadecimal, and a null is "-". In a group, it commits after COUNT records, and leaves.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var out = bufio.NewWriter(os.Stdout)

func check(err error) {
	if err != nil {
		out.Flush()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func text(data []byte) string {
	if data == nil {
		return "-"
	}
	return "x" + hex.EncodeToString(data)
}

func digest(data []byte) string {
	if data == nil {
		return "-"
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func show(partition int32, offset int64, at time.Time, key, value []byte, headers []string) {
	fmt.Fprintln(out, partition, offset, at.UnixMilli(), text(key), digest(value), "["+strings.Join(headers, ",")+"]")
}

func showFranz(record *kgo.Record) {
	var headers []string
	for _, header := range record.Headers {
		headers = append(headers, header.Key+"="+text(header.Value))
	}
	show(record.Partition, record.Offset, record.Timestamp, record.Key, record.Value, headers)
}

// readFranz reads up to the end offsets that the cluster states.
func readFranz(bootstrap, topic, isolation string) {
	level := kgo.ReadUncommitted()
	if isolation == "read_committed" {
		level = kgo.ReadCommitted()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(level),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	check(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	admin := kadm.NewClient(client)
	ends, err := admin.ListEndOffsets(ctx, topic)
	check(err)
	starts, err := admin.ListStartOffsets(ctx, topic)
	check(err)
	left := map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		check(end.Err)
		start, _ := starts.Lookup(topic, end.Partition)
		if end.Offset > start.Offset {
			left[end.Partition] = end.Offset
		}
	})
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			if !record.Attrs.IsControl() {
				showFranz(record)
			}
			if record.Offset+1 >= left[record.Partition] {
				delete(left, record.Partition)
			}
		})
	}
}

func readFranzGroup(bootstrap, topic, group string, count int) {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for count > 0 {
		fetches := client.PollRecords(ctx, count)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			count--
			showFranz(record)
		})
		check(client.CommitUncommittedOffsets(ctx))
	}
}

// readSarama reads all partitions. It hides markers, so that the end of a log may never come: silence ends the reading,
// a short one once as many records have come as were expected.
func readSarama(bootstrap, topic, isolation string, count int) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Return.Errors = true
	if isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumer([]string{bootstrap}, config)
	check(err)
	partitions, err := consumer.Partitions(topic)
	check(err)
	messages := make(chan *sarama.ConsumerMessage)
	for _, partition := range partitions {
		reading, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		check(err)
		go func() {
			for message := range reading.Messages() {
				messages <- message
			}
		}()
		go func() {
			for err := range reading.Errors() {
				check(err)
			}
		}()
	}
	for silence := 30 * time.Second; ; {
		select {
		case message := <-messages:
			var headers []string
			for _, header := range message.Headers {
				headers = append(headers, string(header.Key)+"="+text(header.Value))
			}
			show(message.Partition, message.Offset, message.Timestamp, message.Key, message.Value, headers)
			if count--; count <= 0 {
				silence = 500 * time.Millisecond
			}
		case <-time.After(silence):
			return
		}
	}
}

func main() {
	defer out.Flush()
	arguments := os.Args[1:]
	switch arguments[0] {
	case "franz-go":
		readFranz(arguments[1], arguments[2], arguments[3])
	case "franz-go-group":
		count, err := strconv.Atoi(arguments[4])
		check(err)
		readFranzGroup(arguments[1], arguments[2], arguments[3], count)
	case "sarama":
		count, err := strconv.Atoi(arguments[4])
		check(err)
		readSarama(arguments[1], arguments[2], arguments[3], count)
	default:
		check(fmt.Errorf("no client %s", arguments[0]))
	}
}
