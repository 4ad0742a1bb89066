# Print what a URL returns, with HTTP::Tiny as it is.
use strict;
use warnings;
use HTTP::Tiny;

my $answer = HTTP::Tiny->new(timeout => 20)->get($ARGV[0]);
die "$answer->{status} $answer->{reason}: $answer->{content}\n" unless $answer->{success};
print $answer->{content};
