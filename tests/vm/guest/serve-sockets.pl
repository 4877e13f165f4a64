# A service that listens on nothing itself: it answers on the sockets that it has been passed (sd_listen_fds(3)).
use strict;
use warnings;
use Socket;

die "no sockets\n" unless ($ENV{LISTEN_PID} // 0) == $$;
my (@streams, @datagrams);
for my $fd (3 .. 2 + $ENV{LISTEN_FDS}) {
	open(my $socket, '+<&=', $fd) or die "$fd: $!";
	push @{ unpack('i', getsockopt($socket, SOL_SOCKET, SO_TYPE)) == SOCK_STREAM ? \@streams : \@datagrams }, $socket;
}
while (1) {
	my $wanted = '';
	vec($wanted, fileno $_, 1) = 1 for @streams, @datagrams;
	select(my $ready = $wanted, undef, undef, undef);
	for my $socket (grep { vec($ready, fileno $_, 1) } @streams) {
		accept(my $client, $socket) or next;
		my $keep = unpack('i', getsockopt($socket, SOL_SOCKET, SO_KEEPALIVE));
		syswrite $client, "pid $$ descriptor " . fileno($socket) . " of $ENV{LISTEN_FDNAMES} keepalive $keep\n";
	}
	for my $socket (grep { vec($ready, fileno $_, 1) } @datagrams) {
		recv($socket, my $message, 100, 0);
		open(my $log, '>>', '/run/parity-datagrams') or die $!;
		print $log "pid $$ got $message\n";
		close $log;
	}
}
